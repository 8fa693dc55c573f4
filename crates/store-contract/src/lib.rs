//! The contract of the repositories, as test cases that every backend must pass.
//!
//! [`contract_tests!`] creates one test from each case. A case receives the repositories of an
//! empty database. To add a case, write a `pub async fn` in a module of [`cases`] and add its name
//! to the list in [`contract_tests!`].

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    reason = "a case panics to fail its test, and its name says what it proves"
)]

pub mod cases;
mod fixtures;
mod sample_batch;
pub mod sources;

/// Creates one test from each case of the contract, grouped in modules. `$open` is the path of an
/// `async fn() -> TestStore` that creates an empty database.
#[macro_export]
macro_rules! contract_tests {
    ($open:path) => {
        $crate::contract_tests! { @modules $open;
            batches {
                batch_with_an_outdated_lease_is_fenced,
                batch_with_an_outdated_row_writes_nothing,
                every_kind_of_row_of_a_batch_is_stored,
                every_kind_of_row_survives_the_bisection_of_a_rejected_batch,
                failed_batch_stores_no_kind_of_row,
                fenced_batch_stores_no_kind_of_row,
                operations_succeed_again_after_their_transactions_failed,
                rejected_delivered_reports_do_not_split_the_other_rows,
                rejected_row_and_unavailable_database_are_different_errors,
                reason_of_a_rejected_row_contains_no_values,
            }
            clients {
                client_is_found_connected_or_disconnected_only_for_its_organization,
                clients_are_found_by_each_of_their_identifiers,
                connected_row_of_a_client_replaces_its_disconnected_row,
                expired_history_is_deleted_in_chunks,
                history_above_the_limit_per_client_is_deleted,
                history_is_deleted_with_its_client,
                history_is_listed_newest_first_and_by_organization,
                numbers_continue_after_the_history_of_a_row_without_a_count,
                recent_dead_letters_of_a_client_are_listed,
                rows_without_times_have_the_times_of_their_messages,
            }
            connections {
                connection_is_visible_only_to_its_organization,
                connections_of_clients_are_only_connections_of_the_organization,
                list_all_clients_returns_pages_of_clients_with_a_tenant,
                list_of_clients_of_an_organization_is_ordered_counted_and_paged,
                list_of_connections_is_ordered_counted_and_paged,
                proxy_is_read_back_unchanged,
                query_ends_when_its_visitor_stops,
                satellite_is_found_for_every_organization,
                unusual_values_are_read_back_unchanged,
            }
            dead_letters {
                batches_do_not_delete_dead_letters_of_other_clients,
                dead_letter_with_an_unknown_reason_is_listed,
                dead_letters_can_be_filtered_read_and_purged,
                equal_dead_letters_of_a_client_share_one_row,
                finish_replay_keeps_a_dead_letter_that_was_rejected_again,
                oldest_dead_letters_above_the_client_limit_are_deleted,
                total_limit_below_the_number_of_clients_deletes_the_oldest,
                total_limit_deletes_the_oldest_of_the_clients_with_the_most,
                total_limit_is_enforced_for_many_clients_and_dead_letters,
            }
            delivered_reports {
                delivered_report_after_a_disconnect_is_ignored,
                delivered_report_does_not_change_the_version_of_the_row,
                delivered_report_of_a_changed_row_is_ignored,
                delivered_report_sets_the_time_of_the_report,
            }
            epochs {
                each_connection_of_a_session_gets_a_higher_epoch,
                one_process_has_the_lease_of_a_session,
                epochs_of_a_restored_database_are_higher_than_before,
            }
            events {
                events_are_deleted_from_the_oldest_position_up_to_a_time_and_a_position,
                events_with_a_future_time_do_not_stop_the_deletion,
                history_and_events_are_never_later_than_their_batch,
                events_are_read_by_organization_in_the_order_of_their_positions,
                large_events_are_read_in_several_calls,
                newest_position_remains_after_all_events_are_deleted,
                offline_event_of_a_client_that_moves_has_its_last_dispatchers,
            }
            heartbeats {
                heartbeat_before_the_offline_message_is_ignored,
                heartbeat_restores_a_disconnected_client,
                message_without_a_stamp_clears_the_stored_stamp,
                offline_message_before_a_heartbeat_does_not_end_the_connection,
                online_message_keeps_only_a_heartbeat_with_a_higher_stamp,
                stamp_without_a_heartbeat_time_is_ignored,
                stamps_decide_between_a_heartbeat_and_a_later_offline_message,
                stamps_decide_between_an_offline_message_and_a_later_heartbeat,
            }
            idempotency {
                concurrent_requests_with_a_key_store_one_message,
                deleted_and_expired_keys_can_be_used_again,
                expired_keys_are_deleted_in_chunks,
                first_response_is_stored,
                key_is_used_once_by_each_caller,
            }
            liveness {
                connection_with_a_message_after_the_first_ping_does_not_expire,
                connections_are_listed_by_the_time_of_their_last_message,
                disconnect_of_an_expired_connection_is_not_before_its_latest_message,
                expired_connection_is_disconnected_with_history_and_event,
                ingest_sessions_have_their_epoch_lease_and_start,
                later_heartbeat_restores_an_expired_connection,
                progress_of_recording_never_decreases,
                row_without_last_seen_has_the_time_of_its_latest_message,
                state_of_the_sweep_is_stored,
            }
            lookup_queue {
                claimed_row_is_not_claimed_again_until_its_claim_ends,
                every_lookup_result_ends_the_claim,
                hosts_with_a_failed_report_are_claimed_last,
                lookup_result_for_a_changed_row_is_discarded,
                missing_tenants_are_claimed_oldest_lookup_first,
                details_of_a_claimed_client_have_the_version_of_the_claim,
                only_hosts_with_an_old_report_are_claimed_for_the_inventory_refresh,
                released_claims_end_and_claims_of_other_jobs_stay,
                rows_with_a_failed_lookup_are_claimed_last,
                tenantless_clients_are_counted_listed_reset_and_deleted,
                tenants_are_restored_only_for_connected_tenantless_clients,
            }
            maintenance {
                client_ids_are_listed_in_ascending_order,
                clients_that_disconnected_before_a_time_are_deleted,
                connections_are_counted_by_organization,
                disconnected_clients_are_deleted_in_chunks_oldest_disconnect_first,
            }
            mark_disconnected {
                client_that_reconnects_after_the_disconnect_is_connected,
                heartbeats_lookups_and_inventory_reports_do_not_prevent_the_disconnect,
                mark_disconnected_does_not_end_a_connection_that_a_heartbeat_restored,
                mark_disconnected_does_not_end_a_newer_connection,
                mark_disconnected_ends_the_connection,
                mark_disconnected_has_the_time_of_the_database,
                mark_disconnected_moves_the_disconnect_time_of_a_disconnected_client,
            }
            message_answers {
                answer_before_the_acknowledgement_wins,
                answer_changes_every_state_except_cancelled,
                answer_to_a_failed_message_removes_the_reason,
                answers_of_a_batch_change_each_message,
                client_in_another_organization_cannot_answer,
                first_answer_is_stored_and_later_answers_are_counted,
                only_the_client_that_received_the_message_can_answer_it,
                rejection_and_truncation_are_stored,
            }
            messages {
                acknowledged_message_has_its_times_and_events,
                attempt_with_an_expired_lease_fails,
                expired_leases_are_processed_in_chunks,
                final_messages_are_deleted_after_their_retention,
                message_is_visible_only_to_the_organization_of_its_sender,
                messages_are_listed_newest_first_with_filters_and_pages,
                oldest_final_messages_above_the_limit_of_an_organization_are_deleted,
                queued_message_is_cancelled,
                states_of_a_message_only_move_forward,
            }
            presence {
                batch_of_1000_clients_is_written,
                empty_batch_is_accepted,
                offline_message_moves_the_client_to_disconnected_clients,
                online_message_removes_the_client_from_disconnected_clients,
                queue_positions_are_stored,
                second_online_message_replaces_all_values,
                tenant_change_keep_preserves_the_stored_tenant,
                tenantless_client_is_stored_but_not_found_for_any_organization,
            }
            search {
                clients_are_filtered_by_the_time_at_which_they_were_last_seen,
                matches_of_a_filter_are_counted_up_to_a_limit,
                connection_counts_are_correct_after_every_change,
                filters_match_dispatchers_tags_and_facts,
                a_batch_can_contain_unchanged_changed_and_new_clients,
                page_starts_after_the_given_client_id,
                prefix_filter_matches_client_id_and_fqdn,
                search_uses_the_latest_online_message,
            }
        }
    };
    (@modules $open:path; $($module:ident { $($case:ident,)* })*) => {
        $(
            mod $module {
                $(
                    #[tokio::test]
                    async fn $case() {
                        let store = $open().await;
                        $crate::cases::$module::$case(&store).await;
                        store.maintenance.close().await;
                    }
                )*
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    /// A case that is missing in the list of [`contract_tests!`] would never run.
    #[test]
    fn every_case_is_in_the_list() {
        let list = include_str!("lib.rs");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cases");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for item in text.split("pub async fn ").skip(1) {
                let name = item.split('(').next().unwrap();
                let is_listed = list.lines().any(|line| line.trim() == format!("{name},"));
                assert!(is_listed, "{name} of {} is not listed", path.display());
            }
        }
    }
}
