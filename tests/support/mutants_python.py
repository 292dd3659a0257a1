"""Mutants of the engine and the adapters, by file: the text, its replacement, and the tests that notice."""

# ruff: noqa: E501 - the texts are as long as in the code

from __future__ import annotations

__all__ = ["MUTANTS"]

MUTANTS: dict[str, list[tuple[str, str, list[str]]]] = {
    "adapters/throttlekit_celery/_admission.py": [
        (
            "        if safe:\n            self._tasks.forget(held)",
            "        if True:\n            self._tasks.forget(held)",
            ["tests/adapters/celery/test_admission.py::test_a_task_that_is_held_for_too_long_is_put_back"],
        ),
        (
            "        self._throttling.leave(held, self._tasks.waiting_of(held))\n",
            "        pass\n",
            ["tests/adapters/celery/test_admission.py::test_a_revoked_task_leaves_its_waitlist_at_once"],
        ),
        (
            "            self._tasks.forget(held)\n            held.set_state(State.GONE)\n",
            "            self._tasks.forget(held)\n            self._throttling.leave(held, self._tasks.waiting_of(held))\n            held.set_state(State.GONE)\n",
            ["tests/adapters/celery/test_admission.py::test_a_task_that_is_held_for_too_long_is_put_back"],
        ),
    ],
    "adapters/throttlekit_celery/_host.py": [
        (
            '        message.delivery_tag = f"{tag}.{queue}"',
            "        message.delivery_tag = tag",
            ["tests/adapters/celery/test_deliveries.py::test_each_copy_of_a_message_has_a_record_of_its_own"],
        ),
        (
            "            message.delivery_info = sent_to",
            "            pass",
            ["tests/adapters/celery/test_deliveries.py::test_each_copy_of_a_message_has_a_record_of_its_own"],
        ),
        (
            '{"exchange": "", "routing_key": queue}  # where',
            "{**sent_to}  # where",
            ["tests/adapters/celery/test_deliveries.py::test_a_copy_is_restored_to_the_queue_that_it_came_from"],
        ),
        (
            "for tag in reversed(tags):",
            "for tag in tags:",
            [
                "tests/adapters/celery/test_lost_broker.py::test_messages_that_kombu_could_not_put_back_are_left_to_the_adapter"
            ],
        ),
        (
            "                tried.add(tag)  #",
            "                pass  #",
            ["tests/adapters/celery/test_lost_broker.py::test_messages_that_kombu_puts_back_itself_are_detected"],
        ),
        (
            "        qos._delivered.pop(message.delivery_tag, None)",
            "        pass",
            ["tests/adapters/celery/test_lost_broker.py::test_kombu_drops_the_messages_that_the_adapter_puts_back"],
        ),
    ],
    "adapters/throttlekit_celery/_install.py": [
        (
            "    if app.finalized:\n        limits.check(app)\n",
            "",
            ["tests/adapters/celery/test_install.py::test_existing_tasks_are_checked_by_install"],
        ),
        (
            "            installed.limits.check(consumer.app)\n            super()",
            "            super()",
            ["tests/adapters/celery/test_lazy.py::test_wrong_limits_of_a_lazy_task_are_reported_by_the_worker"],
        ),
    ],
    "adapters/throttlekit_celery/_pool_capacity.py": [
        (
            "        own = sum(request in self._received for request in _reserved_requests())",
            "        own = len(_reserved_requests())",
            ["tests/adapters/celery/test_pool_capacity.py::test_requests_of_another_worker_use_no_thread_of_this_one"],
        ),
    ],
    "adapters/throttlekit_celery/_requeue.py": [
        (
            '"retry_on_timeout": False,',
            '"retry_on_timeout": True,',
            ["tests/adapters/celery/test_copies.py::test_a_command_to_redis_is_not_repeated"],
        ),
        (
            "            others = max(0, len(known.alt) - 1)",
            "            others = 0",
            ["tests/adapters/celery/test_copies.py::test_copies_are_sent_to_the_broker_for_writing_if_there_is_one"],
        ),
        (
            "        known, app, others = self._worker, self._consumer",
            "        known, app, others = None, self._consumer",
            ["tests/adapters/celery/test_copies.py::test_copies_are_sent_to_the_server_that_the_worker_consumes_from"],
        ),
        (
            "if known <= number] if multiple else [number]",
            "if known == number]",
            ["tests/adapters/celery/test_loop.py::test_one_confirmation_confirms_all_copies_before_it"],
        ),
        (
            "        self._next_check.drop()\n        self._worker = self._consumer.connection",
            "        self._worker = self._consumer.connection",
            ["tests/adapters/celery/test_loop.py::test_many_copies_are_checked_by_one_timer"],
        ),
    ],
    "adapters/throttlekit_celery/_running.py": [
        (
            "        held.request.__dict__.pop(_EXECUTE, None)\n",
            "",
            ["tests/adapters/celery/test_admission.py::test_a_task_that_has_ended_is_freed"],
        ),
        (
            "            self._end(held, error)\n            return\n        try:",
            "            self._end(held)\n            return\n        try:",
            ["tests/adapters/celery/test_admission.py::test_a_task_with_a_429_waits_and_runs_again"],
        ),
    ],
    "adapters/throttlekit_celery/_waiting.py": [
        (
            "        if any(\n            other.id == held.id and",
            "        if False and any(\n            other.id == held.id and",
            ["tests/adapters/celery/test_admission.py::test_a_message_that_is_delivered_twice_runs_once"],
        ),
        (
            "other.id == held.id and other.request.message.delivery_tag == tag for",
            "other.id == held.id for",
            ["tests/adapters/celery/test_admission.py::test_two_messages_with_one_id_both_run"],
        ),
        (
            "and len(self._tasks) < self._max_held and",
            "and",
            [
                "tests/adapters/celery/test_waiting.py::test_the_prefetch_count_is_one_higher_for_each_task_up_to_max_held"
            ],
        ),
        (
            "            if held not in self._woken:\n                return  # the connection was lost in the meantime\n",
            "",
            [
                "tests/adapters/celery/test_waiting.py::test_a_task_that_was_woken_as_the_connection_broke_is_not_started"
            ],
        ),
        (
            "count_free(len(self._woken))",
            "count_free(0)",
            ["tests/adapters/celery/test_waiting.py::test_free_slots_exclude_those_of_woken_tasks"],
        ),
    ],
    "adapters/throttlekit_huey/_admission.py": [
        (
            "        if not limited:\n            self.schedule.release(taken)",
            "        if limited:\n            self.schedule.release(taken)",
            ["tests/adapters/huey/test_denial.py::test_a_job_of_a_killed_worker_is_taken_by_another_worker[list]"],
        ),
        (
            "        if not limited:\n            self.schedule.release(taken)\n",
            "",
            ["tests/adapters/huey/test_denial.py::test_compressed_messages_are_not_lost"],
        ),
    ],
    "adapters/throttlekit_rq/_waiting.py": [
        (
            "        at_once.lrem(intermediate_key(job.origin), 1, job.id)",
            "        pass",
            ["tests/adapters/rq/test_worker.py::test_a_job_past_its_max_deferrals_is_dropped[throttled-simple]"],
        ),
    ],
    "adapters/throttlekit_rq/_worker.py": [
        (
            "            self._worker.connection.lrem(intermediate_key(job.origin), 1, job.id)",
            "            pass",
            ["tests/adapters/rq/test_worker.py::test_queues_have_priorities[throttled-simple]"],
        ),
        (
            "            if only_here:\n                fail_with(job, error)\n        return True",
            "        return True",
            ["tests/adapters/rq/test_worker.py::test_an_error_before_the_fork_leaves_the_decision_to_the_work_horse"],
        ),
    ],
    "adapters/throttlekit_taskiq/_held.py": [
        (
            "return message.confirm is not None and not message.acked",
            "return message.confirm is not None",
            [
                "tests/adapters/taskiq/test_messages.py::test_a_denied_message_that_would_not_be_redelivered_is_put_back[acknowledged before its body]"
            ],
        ),
    ],
    "adapters/throttlekit_dramatiq/_middleware.py": [
        (
            '    message._message = message._message.copy(options={"store_results": False})',
            "    pass",
            ["tests/adapters/contract/test_dramatiq.py::TestStubBroker::test_a_job_has_a_max_wait_of_its_own"],
        ),
        (
            '    message.options["throws"] = AnyError()',
            "    pass",
            ["tests/adapters/contract/test_dramatiq.py::TestStubBroker::test_max_deferrals_ends_in_failure"],
        ),
        (
            "            end(error)\n        self._holding.give_back(message)",
            "            pass\n        self._holding.give_back(message)",
            ["tests/adapters/contract/test_dramatiq.py::TestStubBroker::test_leases_are_released"],
        ),
        (
            "        end_interrupting(broker, self, message)\n",
            "",
            ["tests/adapters/dramatiq/test_429.py::test_a_message_that_waits_again_is_neither_interrupted_nor_current"],
        ),
        (
            "        if not isinstance(outcome, Run):\n            self._follow",
            "        if False:\n            self._follow",
            ["tests/adapters/dramatiq/test_429.py::test_a_429_is_not_reported_as_a_failure[stub]"],
        ),
        (
            '                raise SkipMessage(f"dropped: {outcome.reason}")',
            "                _fail(message, ValueError(outcome.reason))",
            ["tests/adapters/contract/test_dramatiq.py::TestStubBroker::test_max_wait_can_drop_a_job"],
        ),
    ],
    "adapters/throttlekit_dramatiq/_options.py": [
        (
            "        queue=q_name(message.queue_name),",
            '        queue="",',
            [
                "tests/adapters/dramatiq/test_message_limits.py::test_a_delayed_send_has_the_same_key_as_a_direct_one[stub-None]"
            ],
        ),
        (
            "        function=_function(actor.fn) if actor else None,",
            "        function=None,",
            ["tests/adapters/contract/test_dramatiq.py::TestStubBroker::test_a_job_has_a_max_wait_of_its_own"],
        ),
        (
            "        return own.with_message(given)",
            "        return own",
            ["tests/adapters/contract/test_dramatiq.py::TestStubBroker::test_limits_by_message"],
        ),
        (
            "            given[THROTTLE] if own else self._default.limits,",
            "            given.get(THROTTLE, ()),",
            ["tests/adapters/dramatiq/test_429.py::test_the_on_429_of_the_middleware_applies_to_actors_without_limits"],
        ),
        (
            "            on_429=given.get(ON_429, None if own else self._default.on_429),",
            "            on_429=given.get(ON_429),",
            ["tests/adapters/dramatiq/test_429.py::test_the_on_429_of_the_middleware_applies_to_actors_without_limits"],
        ),
    ],
    "throttlekit/_core/decide.py": [
        (
            "    return early_us(requester.owner) if requester.early_us is None else requester.early_us",
            "    return min(early_us(requester.owner), requester.early_us or 0)",
            ["tests/unit/core/test_decide.py::test_a_requester_states_how_early_its_job_may_be_granted"],
        ),
    ],
    "throttlekit/_core/limit/base.py": [
        (
            "        return None if rule is None else rule.varying_us",
            "        return None",
            ["tests/unit/core/test_varying.py::test_rate_is_serialized_and_counts_in_the_same_bucket"],
        ),
    ],
    "throttlekit/_engine/apply_response.py": [
        (
            "    if reported.retry_after is not None and reported.status in _DENIED:",
            "    if reported.retry_after is not None:",
            ["tests/unit/engine/test_apply_response.py::test_the_strictest_header_is_used"],
        ),
        (
            '    if decision.reason == "store unavailable":\n        return {}',
            "    if False:\n        return {}",
            ["tests/unit/engine/test_apply_response.py::test_headers_are_ignored_outside_a_job"],
        ),
    ],
    "throttlekit/_engine/call.py": [
        (
            " or waited.denials > self.max_deferrals",
            " or waited.denials >= self.max_deferrals",
            ["tests/unit/engine/test_limiter.py::test_max_deferrals_ends_the_wait"],
        ),
        (
            "        delay = min(delay, self.longest, self.max_wait",
            "        delay = min(delay, self.max_wait",
            ["tests/unit/engine/test_limiter.py::test_longest_delay_caps_and_keeps_the_position"],
        ),
        (
            "        if not self.in_time(delay):",
            "        if False:",
            ["tests/unit/engine/test_expiry.py::test_job_that_expires_before_its_slot_takes_none"],
        ),
        (
            "        seconds = min(self.max_wait - waited_us / 1_000_000, self.expires_in) + _PAST",
            "        seconds = min(self.max_wait, self.expires_in) + _PAST",
            ["tests/unit/engine/test_expiry.py::test_time_before_the_expiry_is_counted_from_now"],
        ),
    ],
    "throttlekit/_engine/fallback.py": [
        (
            '    if "closed" in policies:',
            "    if False:",
            ["tests/unit/engine/test_breaker.py::test_the_strictest_of_several_limits_decides"],
        ),
        (
            "    return soon if count <= _SOON_MOST else",
            "    return soon if True else",
            ["tests/unit/engine/test_breaker.py::test_many_jobs_return_less_often"],
        ),
        (
            '        if policy == "open":',
            "        if False:",
            ["tests/unit/engine/test_breaker.py::test_an_uncharged_cost_is_not_settled_on_another_limit"],
        ),
    ],
    "throttlekit/_engine/hold.py": [
        (
            "            self._limiter.cancel(request.result())",
            "            pass",
            ["tests/unit/engine/test_hold.py::test_task_that_is_cancelled_while_it_requests_takes_nothing"],
        ),
        (
            "        except BaseException:  # also an interrupt, such as a job's time limit\n            self._leave()",
            "        except BaseException:  # also an interrupt, such as a job's time limit\n            pass",
            ["tests/unit/engine/test_hold.py::test_an_interrupt_ends_the_wait"],
        ),
    ],
    "throttlekit/_engine/leases.py": [
        (
            "now + seconds / 3, now)",
            "now + seconds * 3, now)",
            ["tests/unit/engine/test_leases.py::test_body_longer_than_its_lease_keeps_its_slot"],
        ),
        (
            "            if gone and not kept.lost:",
            "            if gone:",
            ["tests/unit/engine/test_leases.py::test_lost_lease_is_reported_once_and_retried"],
        ),
        (
            "                    owed = [_reversal(each) for each in leases if done or not is_workflow(each.algorithm.holder)]",
            "                    owed = [_reversal(each) for each in leases]",
            ["tests/unit/engine/test_returns.py::test_slot_of_a_workflow_is_not_returned_for_a_lost_answer"],
        ),
        (
            "                self._heartbeats[_in_process(each)].drop(_lease(each))\n            leases",
            "                pass\n            leases",
            ["tests/unit/engine/test_leases.py::test_body_longer_than_its_lease_keeps_its_slot"],
        ),
        (
            "                    self._stores.returns.owe(owed, after)",
            "                    pass",
            ["tests/unit/engine/test_returns.py::test_a_release_that_got_no_answer_is_repeated"],
        ),
        (
            "        with known.renewing:\n            return kept",
            "        if known.renewing:\n            return kept",
            ["tests/unit/engine/test_leases.py::test_dropped_lease_is_not_renewed_by_a_running_round"],
        ),
    ],
    "throttlekit/_engine/pipeline.py": [
        (
            "[Part(stores.in_process, own)], rest",
            "[Part(stores.in_process, [])], rest",
            ["tests/unit/core/test_scopes.py::test_process_limit_makes_no_request"],
        ),
        (
            "            if waited.denials:\n                self._known[id]",
            "            if False:\n                self._known[id]",
            ["tests/unit/engine/test_rate_limited_jobs.py::test_endless_429s_end_by_max_wait"],
        ),
        (
            '            again = "" if slots_of(attempt.request) else attempt.request.attempt',
            "            again = attempt.request.attempt",
            ["tests/unit/engine/test_returns.py::test_a_job_that_waited_does_not_run_on_a_slot_that_was_returned"],
        ),
    ],
    "throttlekit/_engine/prefetch.py": [
        (
            "            self._entry.quota.put_back(self._cost, self._until_us)",
            "            pass",
            ["tests/unit/engine/test_prefetch.py::test_several_limits_are_all_or_nothing"],
        ),
        (
            "                if held.entries.get(entry.name) is not entry:",
            "                if False:",
            ["tests/unit/engine/test_prefetch.py::test_units_that_arrive_after_a_pause_or_reset_are_not_spent"],
        ),
    ],
    "throttlekit/_engine/response_headers.py": [
        (
            "whole(min(numbers) if least else numbers[0])",
            "whole(max(numbers) if least else numbers[0])",
            [
                "tests/unit/engine/test_response_headers.py::test_the_stricter_value_is_used_and_unreadable_ones_are_ignored"
            ],
        ),
        (
            "        return max(self.remaining, self.limit)",
            "        return self.remaining",
            ["tests/unit/engine/test_response_headers.py::test_a_buckets_refill_counts_until_its_reset"],
        ),
        (
            "        if self.retry_after is not None:\n            return self.retry_after\n",
            "",
            ["tests/unit/engine/test_response_headers.py::test_a_secondary_limit_of_github_is_a_minute"],
        ),
        (
            '        reset = fields.reset(f"{prefix}-reset") if reset is None else reset',
            '        reset = fields.reset(f"{prefix}-reset")',
            ["tests/unit/engine/test_response_headers.py::test_each_dialect_is_read"],
        ),
        (
            "    denied = fields.status in (None, 403, 429)",
            "    denied = True",
            ["tests/unit/engine/test_response_headers.py::test_a_secondary_limit_of_github_is_a_minute"],
        ),
        (
            "parts=1000)\n    return []",
            "parts=1)\n    return []",
            ["tests/unit/engine/test_response_headers.py::test_each_dialect_is_read"],
        ),
        (
            "            if remaining is not None or reset:  #",
            "            if remaining is not None or reset is not None:  #",
            ["tests/unit/engine/test_response_headers.py::test_each_dialect_is_read"],
        ),
    ],
    "throttlekit/_engine/room.py": [
        (
            "            known.periodic_us = now_us + known.period_us() if known.ids else _NEVER_US",
            "            known.periodic_us = _NEVER_US",
            ["tests/unit/engine/test_waker.py::test_a_process_looks_at_the_waitlists_of_its_jobs"],
        ),
        (
            "                known.claim = unit",
            "                known.claim = known.claim",
            ["tests/unit/engine/test_waker.py::test_looks_use_the_rate_of_the_last_request"],
        ),
        (
            "            self._wake(self._held[id], at_us)\n        return None if before is item else before",
            "            self._wake(self._held[id], at_us)\n        return None",
            ["tests/unit/engine/test_waker.py::test_a_second_copy_of_a_message_returns_the_first_one"],
        ),
    ],
    "throttlekit/_engine/running.py": [
        (
            "        if self.lost:\n            raise LeaseLost",
            "        if False:\n            raise LeaseLost",
            ["tests/unit/engine/test_leases.py::test_lost_slot_is_reported_to_the_body_and_to_plugins"],
        ),
        (
            "                each._replace(cost=min(each.cost, actual)) if each in meant else each for each in self.decision.charged",
            "                each for each in self.decision.charged",
            ["tests/unit/engine/test_running.py::test_a_store_that_fails_does_not_fail_the_body"],
        ),
    ],
    "throttlekit/_engine/stores.py": [
        (
            '        return self.in_process if limit.scope == "process" else self.shared',
            "        return self.shared",
            ["tests/unit/core/test_scopes.py::test_process_limit_makes_no_request"],
        ),
    ],
    "throttlekit/_engine/waker.py": [
        (
            "            here.attempts[id] = attempt\n",
            "",
            ["tests/unit/engine/test_waker.py::test_a_request_without_an_answer_is_repeated_as_the_same_attempt"],
        ),
        (
            "            if until_us <= now_us:\n                self.forget(other)",
            "            if False:\n                self.forget(other)",
            ["tests/unit/engine/test_waker.py::test_a_job_that_another_process_has_taken_is_forgotten_after_a_minute"],
        ),
    ],
    "throttlekit/adapter/admission.py": [
        (
            '        if decision.allowed or self.rules.on_waited_too_long == "run":',
            "        if decision.allowed:",
            ["tests/unit/engine/test_adapter_floor.py::test_a_job_past_its_max_wait_ends_as_configured"],
        ),
        (
            '        if self.rules.on_waited_too_long == "drop":\n            return Dropped',
            "        if False:\n            return Dropped",
            ["tests/unit/engine/test_adapter_floor.py::test_a_job_past_its_max_wait_ends_as_configured"],
        ),
        (
            "            return Failed(error)\n        self._log.error(",
            "        self._log.error(",
            ["tests/unit/engine/test_adapter_floor.py::test_a_configuration_error_fails_the_job"],
        ),
        (
            "        if not run.limits:\n            return run\n",
            "        if False:\n            return run\n",
            ["tests/unit/engine/test_adapter_floor.py::test_a_job_without_limits_runs_without_a_request"],
        ),
    ],
    "throttlekit/adapter/body.py": [
        (
            "    if not isinstance(bucket, str) or (bucket and not is_bucket_of(bucket, limit.fingerprint)):",
            "    if not isinstance(bucket, str):",
            ["tests/unit/engine/test_running.py::test_a_receipt_reaches_only_the_keys_of_its_limits"],
        ),
        (
            '    if any(each.get("holder") for each in receipt["charged"]):',
            "    if False:",
            ["tests/unit/engine/test_running.py::test_a_receipt_of_a_slot_is_read_at_once"],
        ),
    ],
    "throttlekit/adapter/loop.py": [
        (
            "        held[:0] = [message for _, message in self._woken]\n",
            "        held[:0] = []\n",
            ["tests/unit/engine/test_holding_stream.py::test_a_message_woken_at_shutdown_is_returned"],
        ),
        (
            "        if held >= self._most:",
            "        if held > self._most:",
            ["tests/unit/engine/test_holding_stream.py::test_held_messages_are_returned_at_the_end"],
        ),
    ],
    "throttlekit/adapter/rate_limited.py": [
        (
            "    meant = named or _claims_named(claims, run.on_429) or _rates(claims)",
            "    meant = named or _rates(claims)",
            ["tests/unit/engine/test_rate_limited_jobs.py::test_named_limit_or_all_rates_are_paused"],
        ),
        (
            " if stored else min(delivery.longest, delay))",
            " if stored else delay)",
            ["tests/unit/engine/test_rate_limited_jobs.py::test_unavailable_store_defers_the_job_by_its_retry_after"],
        ),
    ],
    "throttlekit/stores/breaker.py": [
        (
            "            if last is None or last.probe_at <= now:",
            "            if True:",
            ["tests/unit/engine/test_breaker.py::test_an_outage_costs_one_request_a_second"],
        ),
        (
            "        if self._outages:\n            self._record_answer([claim.bucket for claim in claims])\n        return answer",
            "        return answer",
            ["tests/unit/engine/test_breaker.py::test_the_first_answer_ends_the_outage"],
        ),
        (
            "                outage.probe_at = min(outage.probe_at, next_at) if outage.probe_at > now else next_at",
            "                outage.probe_at = next_at + 5",
            ["tests/unit/engine/test_breaker.py::test_an_outage_costs_one_request_a_second"],
        ),
        (
            "            moved = [part for part, outage in self._outages.items() if self._part(outage.name) != part]",
            "            moved: list[str] = []",
            ["tests/unit/engine/test_breaker.py::test_a_node_that_was_replaced_is_forgotten"],
        ),
        (
            "            if outage is not None and outage.probe_at > began:",
            "            if outage is not None:",
            ["tests/unit/engine/test_breaker.py::test_commands_resume_after_an_outage"],
        ),
        (
            "            if self._outages:\n                self._record_answer(names)  # the store",
            "            if False:\n                self._record_answer(names)  # the store",
            ["tests/unit/engine/test_breaker.py::test_a_rejected_call_ends_an_outage"],
        ),
    ],
    "throttlekit/stores/memory.py": [
        (
            "            self._values = {name: entry for name, entry in self._values.items() if now_us < entry[1]}\n",
            "",
            ["tests/unit/engine/test_memory_store.py::test_unused_keys_are_swept"],
        ),
    ],
    "throttlekit/stores/parts.py": [
        (
            "            if any(each.claim.algorithm.holder for each in charges):",
            "            if False:",
            ["tests/unit/engine/test_returns.py::test_a_part_that_may_have_kept_a_slot_makes_the_request_fail"],
        ),
    ],
    "throttlekit/stores/returns.py": [
        (
            "            if each.answered:\n",
            "            if True:\n",
            ["tests/unit/engine/test_returns.py::test_a_slot_is_returned_again_after_the_first_answer"],
        ),
        (
            "            if len(buckets) > 1:",
            "            if False:",
            ["tests/unit/engine/test_returns.py::test_an_unavailable_bucket_does_not_block_other_returns"],
        ),
    ],
}
