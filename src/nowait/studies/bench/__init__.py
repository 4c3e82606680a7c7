"""``nw.bench``: a frozen comparison of all methods that anybody can repeat, verify and extend."""

from nowait.studies.bench.bench import bench
from nowait.studies.bench.result import Bench
from nowait.studies.bench.verify import Verified, verify

__all__ = ["Bench", "Verified", "bench", "verify"]
