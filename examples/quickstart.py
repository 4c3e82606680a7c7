"""Three methods on the same problem, speeds and samples, for the same virtual time."""

import nowait as nw

problem = nw.problems.NoisyQuadratic(dimension=50, L=1.0, mu=0.05, sigma=0.2)
speeds = nw.speeds.Fixed([1.0, 1.0, 1.0, 1.0, 30.0])

methods = {
    "minibatch": nw.MinibatchSGD(nw.Constant(1.0)),
    "asynchronous": nw.AsynchronousSGD(nw.DelayAdaptive(0.05)),
    "rennala": nw.RennalaSGD(nw.Constant(0.5), batch=5),
}
for name, method in methods.items():
    run = nw.simulate(problem, method, speeds, seconds=600, seed=0)
    print(f"{name:13} {run.stats.steps:5} steps  {run.stats.gradients:5} gradients  loss {run.history.loss[-1]:.1e}")
