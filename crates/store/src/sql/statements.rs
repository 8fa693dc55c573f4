//! The statements that all databases accept.
//!
//! A statement belongs here if the databases need the same text except for the fragments in
//! [`SqlSyntax`]. Every other statement belongs to the backends. `COALESCE` on `account`, `tags`
//! and `tenant_lookup_failure_count` is needed because the Go implementation can write null to
//! these columns in PostgreSQL.

use const_format::concatcp;

use super::query::Statement;
use super::row::{LAST_SEEN_COLUMN, ONLINE_MESSAGE_COLUMNS, PRESENCE_COLUMNS};

/// Fragments of SQL that differ between databases.
#[derive(Debug, Clone, Copy)]
pub struct SqlSyntax {
    /// Right side of a condition that is true if a text is in the list `$1`.
    pub is_listed: &'static str,
    /// Select list and `FROM` clause that count the connections with a tenant.
    pub connection_count: &'static str,
    /// End of a query that locks its rows until the end of the transaction.
    pub for_update: &'static str,
    /// End of a query that locks its rows, and skips rows that another transaction has locked.
    pub skip_locked: &'static str,
    /// Tables with the columns of `connections` and an index for the inventory refresh.
    pub reported_connections: &'static str,
    /// Column of `reported_connections` with the time of the latest delivered report.
    pub reported_at: &'static str,
    /// Like `skip_locked`, for rows of `connections` in `reported_connections`.
    pub skip_locked_connections: &'static str,
    /// Current time of the database, even if the transaction started earlier.
    pub current_time: &'static str,
    /// Column of `connections` with the hash of the row in the search index, or null.
    pub search_hash: &'static str,
    /// The end of a lease: the current time of the database plus the number of seconds in `$1`.
    pub lease_end: &'static str,
    /// One day, as a summand of a time.
    pub one_day: &'static str,
}

/// Columns of a connection.
pub const CONNECTION_COLUMNS: &str = concatcp!(
    "client_id, org_id, COALESCE(account, '') AS account, COALESCE(tags, 'null') AS tags, ",
    ONLINE_MESSAGE_COLUMNS,
    ", online_received_at, COALESCE(connected_since, online_received_at) AS connected_since, ",
    LAST_SEEN_COLUMN
);

/// Columns of a connection that is claimed for a tenant lookup.
const CLAIMED_COLUMNS: &str = "client_id, org_id, COALESCE(account, '') AS account, updated_at";

/// Columns of a dead letter except for the payload.
pub(super) const DEAD_LETTER_COLUMNS: &str = "id, client_id, topic, size, sha256, reason, detail, \
     occurrences, first_received, last_received, replay_requested_at";

/// Number of failed lookups of a row.
pub(super) const FAILED_LOOKUPS: &str = "COALESCE(tenant_lookup_failure_count, 0)";

/// Columns of an event.
const EVENT_COLUMNS: &str =
    "position, at, type, org_id, account, client_id, data, previous_dispatchers";

/// Columns of a connection that the liveness sweep reads.
const WATCHED_COLUMNS: &str = concatcp!(
    "client_id, dialect, topic_prefix, updated_at, last_heartbeat_at, \
     COALESCE(offline_received_at, online_received_at) AS presence_received_at, ",
    LAST_SEEN_COLUMN
);

/// Columns of a message, except for its answer and its content.
pub(super) const MESSAGE_COLUMNS: &str = "id, client_id, caller, directive, state, reason, bulk_id, \
     created_at, sent_at, acknowledged_at, answered_at, ended_at, expires_at, attempts, \
     may_be_duplicate, answer_count";

/// Columns of a changed message, from which its event is built.
pub const MESSAGE_CHANGE_COLUMNS: &str =
    "id, org_id, account, client_id, directive, state, reason, bulk_id";

/// Condition on rows that are due for an inventory refresh.
const INVENTORY_REFRESH_IS_DUE: &str = "org_id <> '' AND inventory_eligible \
     AND stale_timestamp < $1 AND (lookup_claimed_until IS NULL OR lookup_claimed_until < $2)";

/// Condition on rows that are due for a lookup of a missing tenant. The partial index has the first
/// condition and [`LOOKUP_HAS_NOT_FAILED`].
const MISSING_TENANT_IS_DUE: &str = "org_id = '' AND tenant_lookup_timestamp < $1 \
     AND (lookup_claimed_until IS NULL OR lookup_claimed_until < $2) \
     AND COALESCE(tenant_lookup_failure_count, 0) < $3";

/// Condition on rows whose latest lookup by a job did not fail.
const LOOKUP_HAS_NOT_FAILED: &str = "lookup_failed_at IS NULL";

/// Condition on rows whose latest lookup by a job failed. The partial index has the same condition.
const LOOKUP_HAS_FAILED: &str = "lookup_failed_at IS NOT NULL";

/// Declares [`SharedStatements`] with one field for each statement. The first line contains the
/// fields of [`SqlSyntax`], which the texts can use in braces.
macro_rules! shared_statements {
    ($($fragment:ident),*; $($(#[$attribute:meta])* $name:ident = $sql:literal;)*) => {
        /// The statements that all databases accept, in the syntax of one database.
        #[derive(Debug)]
        pub struct SharedStatements {
            $($(#[$attribute])* pub(super) $name: Statement,)*
        }

        impl SharedStatements {
            /// Creates the statements. Call this function once for each backend, because the texts
            /// are never deallocated.
            #[must_use]
            pub fn new(syntax: SqlSyntax) -> Self {
                let SqlSyntax { $($fragment),* } = syntax;
                Self {
                    $($name: Statement::in_list(format!($sql).leak()),)*
                }
            }

            /// Returns the query for the number of connections with a tenant, in the column
            /// `count`.
            #[must_use]
            pub fn connection_count(&self) -> super::Query<'static> {
                self.count_connections_with_tenant.with([])
            }

            /// Returns the name and the text of each statement.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, &'static str)> {
                vec![$((stringify!($name), self.$name.sql())),*]
            }
        }
    };
}

shared_statements! {
    is_listed, connection_count, for_update, skip_locked, reported_connections, reported_at,
    skip_locked_connections, current_time, search_hash, lease_end, one_day;

    /// Parameters: clients.
    load_client_states =
        "SELECT 1 AS connected, client_id, org_id, COALESCE(account, '') AS account,
                message_id, message_sent,
                COALESCE(offline_received_at, online_received_at) AS presence_received_at,
                queue_topic, queue_partition, queue_offset, presence_session, presence_epoch,
                presence_sequence, last_heartbeat_at, heartbeat_session, heartbeat_epoch,
                heartbeat_sequence, offline_received_at, updated_at, {search_hash} AS search_hash,
                {PRESENCE_COLUMNS}
           FROM connections WHERE client_id {is_listed}
          UNION ALL
         SELECT 0, client_id, org_id, account, message_id, message_sent,
                disconnected_at, queue_topic, queue_partition, queue_offset, presence_session,
                presence_epoch, presence_sequence, NULL, NULL, NULL, NULL, NULL,
                NULL, NULL, {PRESENCE_COLUMNS}
           FROM disconnected_clients WHERE client_id {is_listed}";

    /// Parameters: clients.
    latest_transitions =
        "SELECT client_id, max(number) AS number FROM presence_history
          WHERE client_id {is_listed} GROUP BY client_id";

    /// Parameters: session, holder.
    release_ingest_session =
        "UPDATE ingest_sessions SET held_until = NULL WHERE name = $1 AND holder = $2
         RETURNING name";

    /// Parameters: clients. A client that is still tenantless keeps its number of failed lookups
    /// when it reconnects.
    keep_failed_lookups =
        "UPDATE connections AS c SET tenant_lookup_failure_count = d.tenant_lookup_failure_count
           FROM disconnected_clients AS d
          WHERE d.client_id = c.client_id AND c.org_id = '' AND d.client_id {is_listed}";

    /// Parameters: clients.
    delete_disconnects = "DELETE FROM disconnected_clients WHERE client_id {is_listed}";

    /// Parameters: client. Locks the row.
    current_connection =
        "SELECT message_id, online_received_at, last_heartbeat_at,
                COALESCE(offline_received_at, online_received_at) AS presence_received_at
           FROM connections WHERE client_id = $1{for_update}";

    /// The current time of the database.
    database_time = "SELECT {current_time} AS database_time";

    /// Parameters: client, disconnect time. The disconnect has no ingest stamp.
    update_disconnect_time =
        "UPDATE disconnected_clients SET disconnected_at = $2, presence_session = NULL,
                presence_epoch = NULL, presence_sequence = NULL
          WHERE client_id = $1 AND disconnected_at < $2";

    /// Parameters: client, organization.
    find_connection =
        "SELECT {CONNECTION_COLUMNS} FROM connections WHERE client_id = $1 AND org_id = $2";

    /// Parameters: client, organization. Also finds connections of other organizations that can be Satellite
    /// servers. It does not return other connections, because reading their content would take time, and so
    /// reveal that another organization has the client. `_` stands for `-`, too.
    find_connection_in_any_org =
        "SELECT {CONNECTION_COLUMNS} FROM connections WHERE client_id = $1 AND org_id <> ''
            AND (org_id = $2 OR CAST(dispatchers AS text) LIKE '%foreman_rh_cloud%')";

    /// Parameters: clients, organization.
    find_connections =
        "SELECT {CONNECTION_COLUMNS} FROM connections
          WHERE org_id = $2 AND client_id {is_listed}";

    /// Parameters: reported before, claims ended before, limit, claim until.
    ///
    /// `ORDER BY` contains only the indexed column. If `client_id` were a second column, the
    /// database would sort all due rows for each claim.
    claim_for_inventory_refresh =
        "UPDATE connections SET lookup_claimed_until = $4
          WHERE client_id IN (SELECT client_id FROM {reported_connections}
                WHERE {reported_at} < $1 AND {INVENTORY_REFRESH_IS_DUE} AND {LOOKUP_HAS_NOT_FAILED}
                ORDER BY {reported_at} LIMIT $3{skip_locked_connections})
         RETURNING stale_timestamp AS sort_key, {CLAIMED_COLUMNS}";

    /// Parameters: reported before, claims ended before, limit, claim until.
    claim_failed_for_inventory_refresh =
        "UPDATE connections SET lookup_claimed_until = $4
          WHERE client_id IN (SELECT client_id FROM connections
                WHERE {INVENTORY_REFRESH_IS_DUE} AND {LOOKUP_HAS_FAILED}
                ORDER BY lookup_failed_at LIMIT $3{skip_locked})
         RETURNING lookup_failed_at AS sort_key, {CLAIMED_COLUMNS}";

    /// Parameters: looked up before, claims ended before, maximum attempts, limit, claim until.
    claim_for_missing_tenant =
        "UPDATE connections SET lookup_claimed_until = $5
          WHERE client_id IN (SELECT client_id FROM connections
                WHERE {MISSING_TENANT_IS_DUE} AND {LOOKUP_HAS_NOT_FAILED}
                ORDER BY tenant_lookup_timestamp LIMIT $4{skip_locked})
         RETURNING tenant_lookup_timestamp AS sort_key, {CLAIMED_COLUMNS}";

    /// Parameters: looked up before, claims ended before, maximum attempts, limit, claim until.
    claim_failed_for_missing_tenant =
        "UPDATE connections SET lookup_claimed_until = $5
          WHERE client_id IN (SELECT client_id FROM connections
                WHERE {MISSING_TENANT_IS_DUE} AND {LOOKUP_HAS_FAILED}
                ORDER BY lookup_failed_at LIMIT $4{skip_locked})
         RETURNING lookup_failed_at AS sort_key, {CLAIMED_COLUMNS}";

    /// Parameters: clients.
    find_client_details =
        "SELECT {CONNECTION_COLUMNS}, updated_at FROM connections WHERE client_id {is_listed}";

    /// Parameters: clients, end of the claim, now. Locks the rows in the order of their client ids,
    /// like a batch.
    release_claims =
        "UPDATE connections SET lookup_claimed_until = $3
          WHERE client_id IN (SELECT client_id FROM connections
                WHERE client_id {is_listed} AND lookup_claimed_until = $2
                ORDER BY client_id{for_update})";

    /// Parameters: reported before, now.
    count_due_inventory_refreshes =
        "SELECT count(*) AS count FROM {reported_connections}
          WHERE {reported_at} < $1 AND {INVENTORY_REFRESH_IS_DUE}";

    /// Parameters: looked up before, now, maximum attempts.
    count_due_missing_tenants =
        "SELECT count(*) AS count FROM connections WHERE {MISSING_TENANT_IS_DUE}";

    /// Parameters: maximum attempts.
    count_tenantless_clients =
        "SELECT count(*) FILTER (WHERE {FAILED_LOOKUPS} < $1) AS pending,
                count(*) FILTER (WHERE {FAILED_LOOKUPS} >= $1) AS exhausted,
                min(tenant_lookup_timestamp)
                    FILTER (WHERE {FAILED_LOOKUPS} < $1) AS oldest_lookup_at
           FROM connections WHERE org_id = ''";

    /// Parameters: limit.
    list_tenantless_clients =
        "SELECT client_id, tenant_lookup_timestamp, online_received_at,
                {FAILED_LOOKUPS} AS failed_lookups
           FROM connections WHERE org_id = '' ORDER BY tenant_lookup_timestamp, client_id LIMIT $1";

    /// Parameters: clients, time of the latest lookup. Locks the rows in the order of their client
    /// ids, like a batch.
    reset_tenantless_clients =
        "UPDATE connections SET tenant_lookup_timestamp = $2, tenant_lookup_failure_count = 0,
                lookup_claimed_until = NULL, lookup_failed_at = NULL
          WHERE client_id IN (SELECT client_id FROM connections
                WHERE org_id = '' AND client_id {is_listed} ORDER BY client_id{for_update})";

    /// Parameters: client before the first client, limit, time of the latest lookup.
    reset_next_tenantless_clients =
        "UPDATE connections SET tenant_lookup_timestamp = $3, tenant_lookup_failure_count = 0,
                lookup_claimed_until = NULL, lookup_failed_at = NULL
          WHERE client_id IN (SELECT client_id FROM connections
                WHERE org_id = '' AND client_id > $1 ORDER BY client_id LIMIT $2{for_update})
         RETURNING client_id";

    /// Parameters: clients.
    delete_tenantless_clients =
        "DELETE FROM connections WHERE org_id = '' AND client_id {is_listed} RETURNING client_id";

    /// Parameters: dead letter.
    find_dead_letter = "SELECT payload, {DEAD_LETTER_COLUMNS} FROM dead_letters WHERE id = $1";

    /// Parameters: dead letter, now.
    request_replay = "UPDATE dead_letters SET replay_requested_at = $2 WHERE id = $1";

    /// Parameters: dead letter, occurrences.
    finish_replay = "DELETE FROM dead_letters WHERE id = $1 AND occurrences = $2";

    /// Parameters: clients, maximum number of dead letters of a client.
    delete_dead_letters_above_client_limit =
        "DELETE FROM dead_letters WHERE id IN (
             SELECT id FROM (
                 SELECT id, row_number() OVER (
                            PARTITION BY client_id ORDER BY last_received DESC, id DESC) AS age_rank
                   FROM dead_letters WHERE client_id {is_listed}) AS ranked
              WHERE age_rank > $2)";

    /// Parameters: limit.
    count_dead_letters_of_first_clients =
        "SELECT client_id, count(*) AS dead_letters FROM dead_letters
          GROUP BY client_id ORDER BY client_id LIMIT $1";

    /// Parameters: client before the first client, limit.
    count_dead_letters_of_next_clients =
        "SELECT client_id, count(*) AS dead_letters FROM dead_letters WHERE client_id > $1
          GROUP BY client_id ORDER BY client_id LIMIT $2";

    /// Parameters: clients, maximum number of dead letters of a client, limit.
    trim_dead_letters =
        "DELETE FROM dead_letters WHERE id IN (
             SELECT id FROM (
                 SELECT id, row_number() OVER (
                            PARTITION BY client_id ORDER BY last_received DESC, id DESC) AS age_rank
                   FROM dead_letters WHERE client_id {is_listed}) AS ranked
              WHERE age_rank > $2 LIMIT $3)";

    /// Parameters: limit.
    delete_oldest_dead_letters =
        "DELETE FROM dead_letters WHERE id IN (
             SELECT id FROM dead_letters ORDER BY last_received LIMIT $1{skip_locked})";

    /// Parameters: client before the first client, limit.
    list_client_ids =
        "SELECT client_id FROM connections WHERE client_id > $1 ORDER BY client_id LIMIT $2";

    count_connections_with_tenant = "SELECT {connection_count}";

    /// Parameters: limit. The row with an empty `org_id` has the number of tenantless clients. One
    /// statement reads all numbers, so they belong to the same snapshot.
    count_by_org =
        "SELECT org_id, connections FROM (
             SELECT org_id, count(*) AS connections FROM connections WHERE org_id <> ''
              GROUP BY org_id ORDER BY connections DESC, org_id LIMIT $1) AS largest
          UNION ALL
         SELECT '', count(*) FROM connections WHERE org_id = ''";

    /// Parameters: client before the first client, limit.
    end_of_chunk =
        "SELECT max(client_id) AS client_id, count(*) AS count FROM (
             SELECT client_id FROM connections WHERE client_id > $1
              ORDER BY client_id LIMIT $2) AS chunk";

    /// Parameters: client before the first client, last client, start, end.
    connections_seen_between =
        "SELECT * FROM (
             SELECT {WATCHED_COLUMNS} FROM connections
              WHERE client_id > $1 AND client_id <= $2) AS chunk
          WHERE last_seen >= $3 AND last_seen < $4 ORDER BY client_id";

    /// Parameters: clients.
    find_watched_connections =
        "SELECT {WATCHED_COLUMNS} FROM connections WHERE client_id {is_listed}";

    /// Parameters: clients. Locks the rows in the order of their client ids, like a batch.
    lock_watched_connections =
        "SELECT {WATCHED_COLUMNS} FROM connections
          WHERE client_id {is_listed} ORDER BY client_id{for_update}";

    /// The rows of a partition that no longer exists are left out: the row that was stored last has the
    /// current number of partitions.
    recording_progress =
        "SELECT queue, partition, partition_count, processed_until FROM (
             SELECT queue, partition, processed_until,
                    first_value(partition_count) OVER (
                        PARTITION BY queue ORDER BY stored_at DESC, partition) AS partition_count
               FROM recording_progress) AS progress
          WHERE partition < partition_count ORDER BY queue, partition";

    sweep_state =
        "SELECT completed_at, swept_restart_at FROM liveness_sweep WHERE name = 'sweep'";

    /// Parameters: start of the latest pass, time of the broker restart.
    store_sweep_state =
        "UPDATE liveness_sweep SET completed_at = $1, swept_restart_at = $2 WHERE name = 'sweep'";

    /// Parameters: clients.
    delete_history = "DELETE FROM presence_history WHERE client_id {is_listed}";

    /// Parameters: time, limit.
    delete_history_before =
        "DELETE FROM presence_history WHERE (client_id, org_id, number) IN (
             SELECT client_id, org_id, number FROM presence_history WHERE at < $1
              ORDER BY at LIMIT $2{skip_locked})";

    /// Parameters: clients, maximum number of entries of a client, limit.
    trim_history =
        "DELETE FROM presence_history WHERE (client_id, org_id, number) IN (
             SELECT h.client_id, h.org_id, h.number FROM presence_history AS h
              WHERE h.client_id {is_listed} AND h.number <= (
                    SELECT max(newest.number) - $2 FROM presence_history AS newest
                     WHERE newest.client_id = h.client_id)
              LIMIT $3{skip_locked})";

    oldest_event_position = "SELECT min(position) AS position FROM events";

    /// Parameters: position before the first event, limit.
    read_events =
        "SELECT {EVENT_COLUMNS} FROM events WHERE position > $1 ORDER BY position LIMIT $2";

    /// Parameters: position before the first event, limit, organization.
    read_org_events =
        "SELECT {EVENT_COLUMNS} FROM events WHERE org_id = $3 AND position > $1
          ORDER BY position LIMIT $2";

    /// Parameters: time, limit, last position, now. Events after now are not considered, and are deleted
    /// with the next event. The outer limit is needed because of these events.
    delete_events_before =
        "DELETE FROM events WHERE position IN (
             SELECT position FROM events WHERE position <= (
                 SELECT max(position) FROM (
                     SELECT position, max(at) OVER (ORDER BY position) AS latest_at
                       FROM (SELECT position, at FROM events WHERE position <= $3 AND at <= $4
                              ORDER BY position LIMIT $2) AS oldest) AS ranked
                  WHERE latest_at < $1)
              ORDER BY position LIMIT $2)";

    /// Parameters: seconds of the lease, id, organization, account, client, organization of the client,
    /// caller, directive, time.
    insert_sending_message =
        "INSERT INTO messages (id, org_id, account, client_id, client_org_id, caller, directive,
                state, attempts, created_at, sent_at, lease_until)
         VALUES ($2, $3, $4, $5, $6, $7, $8, 'sending', 1, $9, $9, {lease_end})
         RETURNING {MESSAGE_CHANGE_COLUMNS}";

    /// Parameters: seconds until the request has a response, organization, caller, key, hash, message.
    /// Returns a row if the key is new or has expired.
    insert_idempotency_key =
        "INSERT INTO idempotency_keys AS k (org_id, caller, key, request_hash, message_id,
                in_progress_until, expires_at)
         VALUES ($2, $3, $4, $5, $6, {lease_end}, {current_time} + {one_day})
         ON CONFLICT (org_id, caller, key) DO UPDATE SET request_hash = excluded.request_hash,
                message_id = excluded.message_id, bulk_id = NULL, status = NULL, body = NULL,
                in_progress_until = excluded.in_progress_until, expires_at = excluded.expires_at
          WHERE k.expires_at <= {current_time}
         RETURNING key";

    /// Parameters: organization, caller, key.
    find_idempotency_key =
        "SELECT request_hash, message_id, status, body,
                CASE WHEN in_progress_until > {current_time} THEN 1 ELSE 0 END AS is_in_progress
           FROM idempotency_keys
          WHERE org_id = $1 AND caller = $2 AND key = $3 AND expires_at > {current_time}";

    /// Parameters: organization, caller, key, message, status, body.
    store_idempotent_response =
        "UPDATE idempotency_keys SET status = $5, body = $6
          WHERE org_id = $1 AND caller = $2 AND key = $3 AND message_id = $4 AND status IS NULL";

    /// Parameters: organization, caller, key, message.
    delete_idempotency_key =
        "DELETE FROM idempotency_keys
          WHERE org_id = $1 AND caller = $2 AND key = $3 AND message_id = $4";

    /// Parameters: limit.
    delete_expired_idempotency_keys =
        "DELETE FROM idempotency_keys WHERE (org_id, caller, key) IN (
             SELECT org_id, caller, key FROM idempotency_keys WHERE expires_at <= {current_time}
              ORDER BY expires_at LIMIT $1{skip_locked})";

    /// Parameters: id, time. A message that is already answered stays answered. It is not returned, because
    /// its state does not change.
    acknowledge_message =
        "UPDATE messages SET state = 'acknowledged', reason = NULL, acknowledged_at = $2,
                ended_at = NULL, final_at = $2, lease_until = NULL, metadata = NULL, payload = NULL
          WHERE id = $1
            AND (state = 'sending' OR (state = 'failed' AND reason = 'broker-timeout'))
         RETURNING {MESSAGE_CHANGE_COLUMNS}";

    /// Parameters: id, time, reason.
    fail_message =
        "UPDATE messages SET state = 'failed', reason = $3, ended_at = $2, final_at = $2,
                lease_until = NULL, metadata = NULL, payload = NULL
          WHERE id = $1 AND state = 'sending'
         RETURNING {MESSAGE_CHANGE_COLUMNS}";

    /// Parameters: id, organization, time.
    cancel_message =
        "UPDATE messages SET state = 'cancelled', ended_at = $3, final_at = $3, metadata = NULL,
                payload = NULL
          WHERE id = $1 AND org_id = $2 AND state = 'queued'
         RETURNING {MESSAGE_CHANGE_COLUMNS}";

    find_expired_send =
        "SELECT id FROM messages WHERE state = 'sending' AND lease_until < {current_time} LIMIT 1";

    /// Parameters: time, reason, limit. The process can have ended after the publish.
    fail_expired_sends =
        "UPDATE messages SET state = 'failed', reason = $2, may_be_duplicate = 1, ended_at = $1,
                final_at = $1, lease_until = NULL, metadata = NULL, payload = NULL
          WHERE id IN (SELECT id FROM messages
                WHERE state = 'sending' AND lease_until < {current_time}
                ORDER BY lease_until LIMIT $3{skip_locked})
         RETURNING {MESSAGE_CHANGE_COLUMNS}";

    /// Parameters: id, organization.
    find_message =
        "SELECT {MESSAGE_COLUMNS}, answer, answer_truncated FROM messages
          WHERE id = $1 AND org_id = $2";

    /// Parameters: time, limit.
    delete_messages_before =
        "DELETE FROM messages WHERE id IN (
             SELECT id FROM messages WHERE final_at < $1 ORDER BY final_at LIMIT $2{skip_locked})";

    /// Parameters: maximum number of messages. The table has few rows for each organization.
    find_large_sender =
        "SELECT org_id, CAST(sum(messages) AS bigint) AS messages FROM message_counters
          GROUP BY org_id HAVING sum(messages) > $1 ORDER BY org_id LIMIT 100";

    /// Parameters: organization, limit.
    delete_oldest_messages =
        "DELETE FROM messages WHERE id IN (
             SELECT id FROM messages WHERE org_id = $1 AND final_at IS NOT NULL
              ORDER BY id LIMIT $2{skip_locked})";
}
