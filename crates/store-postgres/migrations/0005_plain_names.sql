-- Renames tables, columns, indexes and functions to the project's vocabulary, and adds comments
-- that psql shows with \d+. The renames change only the catalog. The only rows that are rewritten
-- are dead letters whose reason has a new name. The columns that the Go implementation uses keep
-- their names.

-- The UPDATE of dead_letters must also read rows that other transactions commit while this
-- transaction waits for the lock. READ COMMITTED makes these rows visible.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
-- Disables the statement timeout of the program, because the migration may take longer.
SET LOCAL statement_timeout = 0;
-- While this transaction waits for a table lock, later transactions wait for this transaction. To
-- limit this time, the migration fails after 10 seconds and changes nothing. In that case, run
-- `cloud-connector migrate` again.
SET LOCAL lock_timeout = '10s';

-- Locks all tables before the first change. The order avoids deadlocks with running transactions:
-- 1. partition_epoch is first, because a batch locks partition_epoch before connections.
-- 2. The second statement waits for all writers but does not block readers. This step is needed
--    because a writer locks connections before org_counts, and the retention job locks departed
--    before connections.
-- 3. The third statement locks org_counts before connections, because a list query uses this order.
LOCK TABLE partition_epoch IN ACCESS EXCLUSIVE MODE;
LOCK TABLE connections, departed IN SHARE ROW EXCLUSIVE MODE;
LOCK TABLE org_counts, connections, departed, findable, dead_letters IN ACCESS EXCLUSIVE MODE;

ALTER TABLE connections RENAME COLUMN last_seen TO online_received_at;
ALTER TABLE connections RENAME COLUMN alive_at TO last_heartbeat_at;
ALTER TABLE connections RENAME COLUMN left_at TO offline_received_at;
ALTER TABLE connections RENAME COLUMN can_be_announced TO inventory_eligible;
ALTER TABLE connections RENAME COLUMN claimed_until TO lookup_claimed_until;
ALTER INDEX connections_stale RENAME TO connections_inventory_refresh;

ALTER TABLE departed RENAME TO disconnected_clients;
ALTER TABLE disconnected_clients RENAME COLUMN departed_at TO disconnected_at;
ALTER INDEX departed_pkey RENAME TO disconnected_clients_pkey;
ALTER INDEX departed_departed_at RENAME TO disconnected_clients_disconnected_at;

ALTER TABLE partition_epoch RENAME COLUMN taken_at TO acquired_at;

ALTER TABLE dead_letters RENAME COLUMN times TO occurrences;
ALTER TABLE dead_letters RENAME COLUMN replay_asked_at TO replay_requested_at;
UPDATE dead_letters SET reason = CASE reason
        WHEN 'not_json' THEN 'invalid_json'
        WHEN 'wrong_shape' THEN 'invalid_schema'
        WHEN 'characters' THEN 'invalid_characters'
        WHEN 'too_long' THEN 'value_too_long'
        WHEN 'too_large' THEN 'payload_too_large'
        WHEN 'refused' THEN 'rejected_by_database'
        ELSE reason END
 WHERE reason IN ('not_json', 'wrong_shape', 'characters', 'too_long', 'too_large', 'refused');

ALTER TABLE org_counts RENAME TO org_connection_deltas;
ALTER TABLE org_connection_deltas RENAME COLUMN change TO delta;
ALTER INDEX org_counts_org_id RENAME TO org_connection_deltas_org_id;

ALTER TABLE findable RENAME TO connection_search;
ALTER TABLE connection_search RENAME COLUMN source TO content_hash;
ALTER TABLE connection_search RENAME COLUMN name TO fqdn;
ALTER TABLE connection_search RENAME COLUMN terms TO term_hashes;
ALTER INDEX findable_pkey RENAME TO connection_search_pkey;
ALTER INDEX findable_org_id_name RENAME TO connection_search_org_id_fqdn;
ALTER INDEX findable_terms RENAME TO connection_search_term_hashes;

-- The new functions compute the same values as the old functions, so the stored hashes stay valid.

-- Returns the search term of a fact. The value is in lower case, and a UUID has no dashes.
CREATE FUNCTION search_fact_term(key text, value text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 'fact:' || key || chr(31) || CASE
        WHEN length(value) IN (32, 36)
             AND replace(lower(value COLLATE "C"), '-', '') ~ '^[0-9a-f]{32}$'
        THEN replace(lower(value COLLATE "C"), '-', '') ELSE lower(value COLLATE "C") END
$$;

-- Returns the search terms of a connection: one term for each fact, tag and dispatcher. If the
-- value of a fact or tag is a list, each element of the list has its own term. Dispatcher names
-- have `-` in place of `_`. The function body must be a single SELECT, because PostgreSQL then
-- inlines the function into the calling query. A function call for each row would take five times
-- as long.
CREATE FUNCTION search_terms(facts jsonb, dispatchers jsonb, tags jsonb) RETURNS SETOF text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT search_fact_term(key, value #>> '{}')
      FROM jsonb_each(
           CASE jsonb_typeof(facts) WHEN 'object' THEN facts ELSE '{}' END) AS e (key, value)
     WHERE jsonb_typeof(value) NOT IN ('array', 'object')
    UNION ALL
    SELECT search_fact_term(key, element)
      FROM jsonb_each(
           CASE jsonb_typeof(facts) WHEN 'object' THEN facts ELSE '{}' END) AS e (key, value)
     CROSS JOIN LATERAL jsonb_array_elements_text(
           CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE '[]' END) AS s (element)
    UNION ALL
    SELECT 'dispatcher:' || replace(key, '_', '-')
      FROM jsonb_object_keys(
           CASE jsonb_typeof(dispatchers) WHEN 'object' THEN dispatchers ELSE '{}' END) AS e (key)
    UNION ALL
    SELECT 'tag:' || key || chr(31) || (value #>> '{}')
      FROM jsonb_each(
           CASE jsonb_typeof(tags) WHEN 'object' THEN tags ELSE '{}' END) AS e (key, value)
     WHERE jsonb_typeof(value) NOT IN ('array', 'object')
    UNION ALL
    SELECT 'tag:' || key || chr(31) || element
      FROM jsonb_each(
           CASE jsonb_typeof(tags) WHEN 'object' THEN tags ELSE '{}' END) AS e (key, value)
     CROSS JOIN LATERAL jsonb_array_elements_text(
           CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE '[]' END) AS s (element)
$$;

-- Returns a hash of all columns from which the search row of a connection is computed. The trigger
-- does not update the search row if the hash is unchanged. A hash collision would therefore leave
-- an outdated search row. This risk is acceptable, because only the client of the row could cause
-- the collision.
CREATE FUNCTION search_content_hash(org_id text, facts jsonb, dispatchers jsonb, tags jsonb)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(org_id, 0) # jsonb_hash_extended(facts, 1)
         # jsonb_hash_extended(dispatchers, 2) # jsonb_hash_extended(COALESCE(tags, 'null'), 3)
$$;

-- Returns the FQDN in lower case, for prefix search.
CREATE FUNCTION search_fqdn(facts jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT left(lower((facts ->> 'fqdn') COLLATE "C"), 255)
$$;

-- The triggers reference the function by its object id, so the triggers call the renamed function.
ALTER FUNCTION connections_changed() RENAME TO maintain_connection_search;
CREATE OR REPLACE FUNCTION maintain_connection_search() RETURNS trigger
LANGUAGE plpgsql
-- PL/pgSQL caches query plans. Without this setting, a plan that was cached while the tables were
-- small would use sequential scans on large tables.
SET enable_seqscan = off AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        TRUNCATE org_connection_deltas, connection_search;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO org_connection_deltas
        SELECT org_id, -count(*) FROM old_rows WHERE org_id <> '' GROUP BY org_id;
        RETURN NULL;
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO org_connection_deltas
        SELECT org_id, count(*) FROM new_rows WHERE org_id <> '' GROUP BY org_id;
    ELSE
        INSERT INTO org_connection_deltas
        SELECT org_id, sum(delta) FROM (
            SELECT org_id, 1 AS delta FROM new_rows UNION ALL SELECT org_id, -1 FROM old_rows) AS c
         WHERE org_id <> '' GROUP BY org_id HAVING sum(delta) <> 0;
    END IF;
    INSERT INTO connection_search (client_id, org_id, content_hash, fqdn, term_hashes)
    SELECT client_id, org_id, search_content_hash(org_id, canonical_facts, dispatchers, tags),
           search_fqdn(canonical_facts),
           ARRAY(SELECT hashtextextended(org_id || chr(31) || term, 0)
                   FROM search_terms(canonical_facts, dispatchers, tags) AS t (term)
                  WHERE term IS NOT NULL LIMIT 256)
      FROM new_rows AS n
     WHERE org_id <> '' AND search_content_hash(org_id, canonical_facts, dispatchers, tags)
           IS DISTINCT FROM (
               SELECT s.content_hash FROM connection_search AS s WHERE s.client_id = n.client_id)
    ON CONFLICT (client_id) DO UPDATE SET org_id = excluded.org_id,
           content_hash = excluded.content_hash, fqdn = excluded.fqdn,
           term_hashes = excluded.term_hashes;
    RETURN NULL;
END
$$;

DROP FUNCTION connection_words(jsonb, jsonb, jsonb);
DROP FUNCTION fact_word(text, text);
DROP FUNCTION connection_source(text, jsonb, jsonb, jsonb);
DROP FUNCTION connection_name(jsonb);

COMMENT ON TABLE connections IS
    'Connected clients. The Go implementation can use this table at the same time.';
COMMENT ON COLUMN connections.client_id IS
    'Client id: the common name of the client certificate. Compared byte by byte.';
COMMENT ON COLUMN connections.org_id IS
    'Organization id. Empty for a tenantless client, which tenant-scope endpoints never show.';
COMMENT ON COLUMN connections.account IS
    'Account number. Empty or null if the client has no tenant or the tenant has no account.';
COMMENT ON COLUMN connections.dialect IS
    'Dialect of the latest online message: status or handshake.';
COMMENT ON COLUMN connections.kind IS
    'Kind of client: host or proxy.';
COMMENT ON COLUMN connections.topic_prefix IS
    'Topic prefix of the latest online message. Messages to the client use the same prefix.';
COMMENT ON COLUMN connections.message_id IS
    'Field message_id of the latest online message.';
COMMENT ON COLUMN connections.message_sent IS
    'Field sent of the latest online message. The receive time if sent is missing or later.';
COMMENT ON COLUMN connections.stale_timestamp IS
    'Time of the latest delivered report to inventory. The Unix epoch if a report is pending.';
COMMENT ON COLUMN connections.tenant_lookup_timestamp IS
    'Time of the latest lookup that found no tenant. Null if the client has a tenant.';
COMMENT ON COLUMN connections.tenant_lookup_failure_count IS
    'Number of lookups by the tenantless job that found no tenant.';
COMMENT ON COLUMN connections.online_received_at IS
    'Receive time of the latest online message, or of the heartbeat that restored the row.';
COMMENT ON COLUMN connections.last_heartbeat_at IS
    'Time of the latest heartbeat after the latest presence message. Null without a heartbeat.';
COMMENT ON COLUMN connections.offline_received_at IS
    'Receive time of an offline message that a later heartbeat overruled. Otherwise null.';
COMMENT ON COLUMN connections.queue_partition IS
    'Kafka partition of the latest presence message. Null without Kafka.';
COMMENT ON COLUMN connections.queue_offset IS
    'Kafka offset of the latest presence message. Null without Kafka.';
COMMENT ON COLUMN connections.inventory_eligible IS
    'Whether inventory accepts this host. Only accepted hosts are reported.';
COMMENT ON COLUMN connections.lookup_claimed_until IS
    'End of the claim of a tenant lookup job. Other jobs skip the row until this time.';
COMMENT ON TABLE disconnected_clients IS
    'Clients that disconnected less than updaters.disconnected_retention ago.';
COMMENT ON COLUMN disconnected_clients.disconnected_at IS
    'Receive time of the offline message.';
COMMENT ON TABLE partition_epoch IS
    'Partition ownership. Only the process with the latest epoch may write the messages.';
COMMENT ON TABLE dead_letters IS
    'Messages that can never be processed.';
COMMENT ON COLUMN dead_letters.client_id IS
    'The client that the topic belongs to. Empty if the topic belongs to no client.';
COMMENT ON COLUMN dead_letters.fingerprint IS
    'Hash of topic and complete payload. Equal messages of a client share one row.';
COMMENT ON COLUMN dead_letters.payload IS
    'Payload of the message. A payload that is too large to store is truncated.';
COMMENT ON COLUMN dead_letters.size IS
    'Size of the complete payload in bytes.';
COMMENT ON COLUMN dead_letters.sha256 IS
    'SHA-256 of the complete payload, in hexadecimal.';
COMMENT ON COLUMN dead_letters.occurrences IS
    'Number of times that the message was received.';
COMMENT ON COLUMN dead_letters.replay_requested_at IS
    'Time at which an operator requested a replay. Null if no replay is pending.';
COMMENT ON TABLE org_connection_deltas IS
    'Changes in the number of connections. The sum of all deltas is the number of connections.';
COMMENT ON TABLE connection_search IS
    'Search index, maintained by triggers. Rows of disconnected clients remain until retention.';
COMMENT ON COLUMN connection_search.content_hash IS
    'Hash of the columns that the row is computed from.';
COMMENT ON COLUMN connection_search.fqdn IS
    'FQDN in lower case, for prefix search.';
COMMENT ON COLUMN connection_search.term_hashes IS
    'Hashes of the organization id and a search term. At most 256 hashes.';
