"""The stages of ./dev gpu, a file each: commands(setting) lists a stage's commands, the most important first."""
import importlib


def commands_of(stage, setting):
    return importlib.import_module(f"stages.{stage}").commands(setting)
