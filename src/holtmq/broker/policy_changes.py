"""Policies: each change with its journal record, and what it changes in queues.

Owns: the policies of users and operators, and applying them. Must not touch: how a definition is read
(``topology/policies.py``).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Final

from holtmq.broker.flow import Flow
from holtmq.broker.records.change_log import ChangeLog
from holtmq.broker.records.changes import PolicyDeleted, PolicyPut, pack_table
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.topology.policies import PolicyBook, effective, make_policy
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.topology.vhosts import VHosts
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.tables import FieldTable

_POLICIES_PER_ITEM: Final = 15
_POLICY_STEP: Final = 200  # queues per step when a policy is applied: about 5 ms


class PolicyChanges:
    """The policies of a broker. ``schedule_expiry`` is called for a queue whose options have changed."""

    def __init__(
        self,
        log: ChangeLog,
        vhosts: VHosts,
        long_changes: LongChanges,
        flow: Flow,
        schedule_expiry: Callable[[Queue], None],
    ) -> None:
        self._log = log
        self._vhosts = vhosts
        self._long_changes = long_changes
        self._flow = flow
        self._schedule_expiry = schedule_expiry
        self.policies = PolicyBook()
        self.operator_policies = PolicyBook()
        self._applying: dict[VHost, bool] = {}  # True: policies have changed since its round began

    def forget_vhost(self, name: str) -> None:
        """Drop the policies of a vhost that is being deleted; its record says so."""
        self.policies.remove_vhost(name)
        self.operator_policies.remove_vhost(name)

    def put(
        self,
        vhost: str,
        name: str,
        pattern: str,
        definition: FieldTable,
        apply_to: str = "all",
        priority: int = 0,
        operator: bool = False,
    ) -> None:
        """Add or replace a policy and apply it to every queue and exchange it matches."""
        self._vhosts.find(vhost)
        policy = make_policy(vhost, name, pattern, definition, apply_to, priority, operator=operator)
        self._log.refuse_if_failed()
        (self.operator_policies if operator else self.policies).put(policy)
        self._log.record(
            PolicyPut(vhost, name, pattern, apply_to, priority, pack_table(definition), operator)
        )
        self._apply_to(self._vhosts[vhost])

    def delete(self, vhost: str, name: str, operator: bool = False) -> None:
        """Delete a policy; its queues return to their own arguments."""
        self._log.refuse_if_failed()
        (self.operator_policies if operator else self.policies).remove(vhost, name)
        self._log.record(PolicyDeleted(vhost, name, operator))
        self._apply_to(self._vhosts.find(vhost))

    def _apply_to(self, vhost: VHost) -> None:
        """Apply the policies in steps. Several changes meanwhile are one more round, not a round each."""
        vhost.rules_changed()  # an exchange may have a different alternate exchange now
        if vhost in self._applying:
            self._applying[vhost] = True
        else:
            self._long_changes.add(self._rounds(vhost), _POLICY_STEP)

    def _rounds(self, vhost: VHost) -> Iterator[Queue]:
        is_due = True
        try:
            while is_due:
                self._applying[vhost] = False
                yield from self.apply_all(vhost)
                is_due = self._applying[vhost]
        finally:
            del self._applying[vhost]

    def apply_all(self, vhost: VHost) -> Iterator[Queue]:
        """Apply the current policies to every queue of a vhost, one queue per item, or for several items if
        its name is compared with many policies."""
        books = (self.policies, self.operator_policies)
        for queue in list(vhost.queues.values()):
            if not queue.deleted and self.apply(queue):
                self._flow.touch(queue)
                if isinstance(queue, WorkQueue) and queue.limited:
                    self._flow.enforce_limits(queue)
                vhost.rules_changed()  # cached routes depend on which queues have limits
            policies = sum(len(book.in_vhost(vhost.name)) for book in books)  # an import adds many meanwhile
            yield from repeat(queue, 1 + policies // _POLICIES_PER_ITEM)

    def apply(self, queue: Queue) -> bool:
        """Apply the current policies to one queue; return whether its options changed."""
        own = queue.declared
        policy = self.policies.for_queue(queue.vhost, queue.name, own.queue_type)
        operator = self.operator_policies.for_queue(queue.vhost, queue.name, own.queue_type)
        queue.policy = policy.name if policy else None
        options = effective(own, policy, operator) if policy or operator else own
        if options is queue.options or options == queue.options:
            return False
        queue.reconfigure(replace(options, max_priority=own.max_priority))
        self._schedule_expiry(queue)
        return True
