"""The methods: each a small handler on the verbs of the server, in a file of its own."""

from nowait.methods.asynchronous_sgd import AsynchronousSGD
from nowait.methods.gradient_table import GradientTable
from nowait.methods.minibatch_sgd import MinibatchSGD
from nowait.methods.random_assignment import RandomAssignment
from nowait.methods.rennala_sgd import RennalaSGD
from nowait.methods.ringleader_asgd import RingleaderASGD
from nowait.methods.ringmaster_asgd import RingmasterASGD

__all__ = [
    "AsynchronousSGD",
    "GradientTable",
    "MinibatchSGD",
    "RandomAssignment",
    "RennalaSGD",
    "RingleaderASGD",
    "RingmasterASGD",
]
