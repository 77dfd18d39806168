"""Engines in this process that behave as other machines do: tasks are pickled, and end in another order."""

import pickle
from itertools import islice

from drkit.core import engine as module


class Pickling:
    """Carries out `window` tasks at a time, the last one first, as a worker gets them.

    `names` has those carried out; `uses` what each of them uses.

    after, at: interrupted once so many tasks were carried out, or before the task of this name. Values that tasks load
    are loaded again for each window.
    """

    threads = 2

    def __init__(self, window=3, after=None, at=None):
        self.window, self.after, self.at, self.names, self.uses = window, after, at, [], {}
        self.slots = window

    def run(self, tasks):
        tasks = iter(tasks)
        while some := list(islice(tasks, self.window)):
            sent = [pickle.dumps(task) for task in some]
            module._loaded_once.cache_clear()
            done = {number: self._carry_out(sent[number]) for number in reversed(range(len(sent)))}
            yield from (done[number] for number in range(len(sent)))

    def _carry_out(self, sent):
        task = pickle.loads(sent)
        if len(self.names) == self.after or task.name == self.at:
            raise KeyboardInterrupt
        self.names.append(task.name)
        self.uses[task.name] = task.uses
        return task.function(*task.arguments)
