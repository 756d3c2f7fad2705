"""A pipeline without a clock: stages that check every KV read, run in any interleaving.

The stages are the simulator's (`atom_lite.simulation.kv_audit`); a test decides which runs next.
"""

from __future__ import annotations

from collections import deque

from atom_lite.messages import StepPlan, StepResult
from atom_lite.simulation.kv_audit import AuditedStage, expected_logprobs, expected_output

__all__ = ["VirtualPipeline", "expected_logprobs", "expected_output"]


class VirtualPipeline:
    """Stages joined by FIFO queues; each `tick` lets one stage run its next plan."""

    def __init__(self, num_stages: int, num_blocks: int, block_size: int) -> None:
        self._stages = [AuditedStage(num_blocks, block_size) for _ in range(num_stages)]
        self._queues: list[deque[StepPlan]] = [deque() for _ in range(num_stages)]
        self._results: deque[StepResult] = deque()
        self.last_handed_on = -1  # by stage 0, to another

    def send(self, plan: StepPlan) -> None:
        self._queues[0].append(plan)

    def tick(self, stage: int) -> None:
        """Run the next plan of a stage, if it has one."""
        if not self._queues[stage]:
            return
        plan = self._queues[stage].popleft()
        tokens, scores = self._stages[stage].run(plan)
        if stage + 1 < len(self._stages):
            self._queues[stage + 1].append(plan)
            if stage == 0:
                self.last_handed_on = plan.step_id
        else:
            result = StepResult(step_id=plan.step_id, tokens=tokens, prompt_scores=scores)
            self._results.append(result)

    def take_result(self) -> StepResult | None:
        return self._results.popleft() if self._results else None

    def finish_oldest(self) -> StepResult | None:
        """Run stages, last first, until a result is there; None when nothing is in flight."""
        while not self._results and any(self._queues):
            for stage in reversed(range(len(self._stages))):
                self.tick(stage)
        return self.take_result()
