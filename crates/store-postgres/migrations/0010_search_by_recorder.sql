-- The recorder computes the rows of connection_search itself, because the triggers need more time for
-- them than for the connections. The triggers compute these rows only for other writers: the Go
-- implementation, earlier versions of the recorder, jobs and operators.
--
-- A process of an earlier version continues to run. Searches find all clients, because the search terms
-- and their hashes do not change. content_hash is computed from the search terms now, so the search row
-- of each client is written once more with the next online message.

SET LOCAL statement_timeout = 0;
-- While this transaction waits for a table lock, later transactions wait for this transaction. To
-- limit this time, the migration fails after 10 seconds and changes nothing. In that case, run
-- `cloud-connector migrate` again.
SET LOCAL lock_timeout = '10s';

-- The recorder assumes the hashes of a server with little-endian byte order.
DO $$
BEGIN
    IF hashtextextended('cloud-connector', 0) <> 2641513857390234742 THEN
        RAISE EXCEPTION 'this server has another byte order, which Cloud Connector does not support; '
            'use a server on x86-64, ARM64 or POWER (ppc64le)';
    END IF;
END
$$;

-- The first statement waits for all writers, but does not block readers.
LOCK TABLE connections IN EXCLUSIVE MODE;
LOCK TABLE connections IN ACCESS EXCLUSIVE MODE;

-- Returns a hash of a row of connection_search. The recorder computes the same hash.
CREATE FUNCTION search_entry_hash(org_id text, fqdn text, term_hashes bigint[]) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(org_id || chr(31) || COALESCE(fqdn, '') || chr(31)
        || array_to_string(term_hashes, ','), 0)
$$;

-- Counts the connections of each organization.
CREATE FUNCTION maintain_connection_counts() RETURNS trigger
LANGUAGE plpgsql
-- PL/pgSQL caches query plans. Without this setting, a plan that was cached while the tables were
-- small would use sequential scans on large tables.
SET enable_seqscan = off AS $$
DECLARE
    own_shard integer;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        TRUNCATE org_connection_deltas, connection_search;
        RETURN NULL;
    END IF;
    own_shard := acquire_count_shard();
    IF TG_OP = 'DELETE' THEN
        INSERT INTO org_connection_deltas AS d (org_id, delta, shard)
        SELECT org_id, -count(*), own_shard FROM old_rows WHERE org_id <> '' GROUP BY org_id
        ON CONFLICT (org_id, shard) DO UPDATE SET delta = d.delta + excluded.delta;
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO org_connection_deltas AS d (org_id, delta, shard)
        SELECT org_id, count(*), own_shard FROM new_rows WHERE org_id <> '' GROUP BY org_id
        ON CONFLICT (org_id, shard) DO UPDATE SET delta = d.delta + excluded.delta;
    ELSE
        INSERT INTO org_connection_deltas AS d (org_id, delta, shard)
        SELECT org_id, sum(delta), own_shard FROM (
            SELECT org_id, 1 AS delta FROM new_rows UNION ALL SELECT org_id, -1 FROM old_rows) AS c
         WHERE org_id <> '' GROUP BY org_id HAVING sum(delta) <> 0
        ON CONFLICT (org_id, shard) DO UPDATE SET delta = d.delta + excluded.delta;
    END IF;
    RETURN NULL;
END
$$;

-- Writes the rows of connection_search, for writers other than the recorder.
CREATE OR REPLACE FUNCTION maintain_connection_search() RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off AS $$
BEGIN
    -- Most updates change none of these columns, for example the claims of the jobs.
    IF TG_OP = 'UPDATE' THEN
        -- EXCEPT, because PostgreSQL joins transition tables with a nested loop.
        IF NOT EXISTS (
            SELECT client_id, org_id, canonical_facts, dispatchers, tags FROM new_rows EXCEPT
            SELECT client_id, org_id, canonical_facts, dispatchers, tags FROM old_rows) THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO connection_search (client_id, org_id, content_hash, fqdn, term_hashes)
    SELECT n.client_id, n.org_id, n.content_hash, n.fqdn, n.term_hashes
      FROM (SELECT e.client_id, e.org_id, search_entry_hash(e.org_id, e.fqdn, e.term_hashes)
                     AS content_hash, e.fqdn, e.term_hashes
              FROM (SELECT client_id, org_id, search_fqdn(canonical_facts) AS fqdn,
                           ARRAY(SELECT hashtextextended(org_id || chr(31) || term, 0)
                                   FROM search_terms(canonical_facts, dispatchers, tags) AS t (term)
                                  WHERE term IS NOT NULL LIMIT 256) AS term_hashes
                      FROM new_rows WHERE org_id <> '' OFFSET 0) AS e OFFSET 0) AS n
     WHERE n.content_hash IS DISTINCT FROM (
               SELECT s.content_hash FROM connection_search AS s WHERE s.client_id = n.client_id)
    ON CONFLICT (client_id) DO UPDATE SET org_id = excluded.org_id,
           content_hash = excluded.content_hash, fqdn = excluded.fqdn,
           term_hashes = excluded.term_hashes;
    RETURN NULL;
END
$$;

DROP TRIGGER connections_inserted ON connections;
DROP TRIGGER connections_updated ON connections;
DROP TRIGGER connections_deleted ON connections;
DROP TRIGGER connections_truncated ON connections;
DROP FUNCTION search_content_hash(text, jsonb, jsonb, jsonb);

CREATE TRIGGER connections_count_inserted AFTER INSERT ON connections
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION maintain_connection_counts();
CREATE TRIGGER connections_count_updated AFTER UPDATE ON connections
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION maintain_connection_counts();
CREATE TRIGGER connections_count_deleted AFTER DELETE ON connections
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION maintain_connection_counts();
CREATE TRIGGER connections_count_truncated AFTER TRUNCATE ON connections
    FOR EACH STATEMENT EXECUTE FUNCTION maintain_connection_counts();
-- In its transactions, the recorder sets cc.recorder to `on`.
CREATE TRIGGER connections_search_inserted AFTER INSERT ON connections
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('cc.recorder', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION maintain_connection_search();
CREATE TRIGGER connections_search_updated AFTER UPDATE ON connections
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('cc.recorder', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION maintain_connection_search();

-- Writers only append to the pending list, and a job moves its entries to the index. With the default of
-- 4 MB, writers would move the entries themselves, in the middle of a batch.
ALTER INDEX connection_search_term_hashes SET (gin_pending_list_limit = 32768);

COMMENT ON TABLE connection_search IS
    'Search index. The recorder and triggers write it. Rows of disconnected clients remain until retention.';
COMMENT ON COLUMN connection_search.content_hash IS
    'Hash of the other columns. A row is written only if its hash changes.';
