"""The folder of a race: what ``Race.save`` writes beside the report, and ``Race.load`` reads."""

from __future__ import annotations

from pathlib import Path

from nowait.recording import Sweep, load
from nowait.recording.files import read_strictly_sealed, sealed, write_json
from nowait.studies.race import Race, folder_names
from nowait.studies.race_setup import SUMMARY, TUNINGS
from nowait.theory import speedup


def save_race(race: Race, target: Path) -> Path:
    """Write the runs and sweeps that are not saved yet, then the summary, which marks the folder as complete."""
    target.mkdir(parents=True, exist_ok=True)
    seeds = race.config["seeds"]
    names = folder_names(list(race.runs), seeds)
    folders = {name: [names[name, seed] for seed in seeds[: len(runs)]] for name, runs in race.runs.items()}
    for name, runs in race.runs.items():
        for folder, run in zip(folders[name], runs, strict=True):
            if not (target / folder).exists():
                run.save(target / folder)
    tunings = {name: f"{TUNINGS}/{number}" for number, name in enumerate(race.tunings)}
    for name, folder in tunings.items():
        if not (target / folder).exists():
            race.tunings[name].save(target / folder)
    write_json(target / "config.json", race.config | {"interrupted": race.interrupted})
    summary = {
        "problem": race.problem,
        "engine": race.engine,
        "seconds": race.seconds,
        "seconds_per_gradient": race.speedup.seconds.tolist(),
        "minimum": race.minimum,
        "config": race.config,
        "interrupted": race.interrupted,
        "answers": race.answers,
        "runs": folders,
        "tunings": tunings,
    }
    write_json(target / SUMMARY, sealed(summary))
    return target


def load_race(source: Path) -> Race:
    """Read the race in a folder."""
    if not (source / SUMMARY).is_file():
        raise FileNotFoundError(f"{source} is not the folder of a race: it has no {SUMMARY}")
    summary = read_strictly_sealed(source / SUMMARY)
    return Race(
        problem=summary["problem"],
        engine=summary["engine"],
        seconds=summary["seconds"],
        runs={name: [load(source / folder) for folder in folders] for name, folders in summary["runs"].items()},
        tunings={name: Sweep.load(source / folder) for name, folder in summary["tunings"].items()},
        speedup=speedup(summary["seconds_per_gradient"]),
        minimum=summary["minimum"],
        config=summary["config"],
        interrupted=summary["interrupted"],
        answers=summary["answers"],
    )
