-- Changes the schema so that no maintenance statement works on an unbounded number of rows:
-- 1. Each organization has a few counters that the triggers update, instead of one row for each
--    change. No job has to compact them.
-- 2. A failed lookup moves a client behind the clients whose latest lookup did not fail.
-- 3. An index orders the dead letters of each client by time.

-- The statements must also read rows that other transactions commit while this transaction waits
-- for the locks. READ COMMITTED makes these rows visible.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
-- Disables the statement timeout of the program, because the migration may take longer.
SET LOCAL statement_timeout = 0;
-- While this transaction waits for a table lock, later transactions wait for this transaction. To
-- limit this time, the migration fails after 10 seconds and changes nothing. In that case, run
-- `cloud-connector migrate` again.
SET LOCAL lock_timeout = '10s';
SET LOCAL maintenance_work_mem = '256MB';

-- The order avoids deadlocks with running transactions: a writer locks connections before
-- org_connection_deltas, and a list query locks org_connection_deltas before connections. The first
-- statement waits for all writers and row locks but does not block readers.
LOCK TABLE connections IN EXCLUSIVE MODE;
LOCK TABLE org_connection_deltas, connections IN ACCESS EXCLUSIVE MODE;

-- Counters. The column shard is null in rows that an older version of the program inserts. Several
-- rows of an organization can have a null shard.
ALTER TABLE org_connection_deltas ADD COLUMN shard integer;
CREATE TEMP TABLE org_connection_sums ON COMMIT DROP AS
SELECT org_id, sum(delta) AS delta FROM org_connection_deltas GROUP BY org_id
HAVING sum(delta) <> 0;
TRUNCATE org_connection_deltas;
INSERT INTO org_connection_deltas (org_id, delta, shard)
SELECT org_id, delta, 0 FROM org_connection_sums;
-- The index must not contain delta. Then an update of delta does not change the index, and
-- PostgreSQL reuses the space of old row versions without a vacuum.
DROP INDEX org_connection_deltas_org_id;
ALTER TABLE org_connection_deltas SET (fillfactor = 50);
CREATE UNIQUE INDEX org_connection_deltas_org_id_shard ON org_connection_deltas (org_id, shard);

-- Returns the number of a shard that no other open transaction uses. The transaction owns the shard
-- until its end, so it never waits for the counters of another transaction.
CREATE FUNCTION acquire_count_shard() RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    -- Key of these advisory locks: `conn` in ASCII.
    lock_class CONSTANT integer := 1668247150;
    shard integer := 0;
BEGIN
    WHILE NOT pg_try_advisory_xact_lock(lock_class, shard) LOOP
        shard := shard + 1;
    END LOOP;
    RETURN shard;
END
$$;

CREATE OR REPLACE FUNCTION maintain_connection_search() RETURNS trigger
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
        RETURN NULL;
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

-- Failed lookups. The jobs claim clients with a null lookup_failed_at first, and then the other
-- clients, oldest failure first.
ALTER TABLE connections ADD COLUMN lookup_failed_at timestamptz;
DROP INDEX connections_inventory_refresh;
CREATE INDEX connections_inventory_refresh ON connections (stale_timestamp)
    WHERE org_id <> '' AND inventory_eligible AND lookup_failed_at IS NULL;
CREATE INDEX connections_missing_tenant ON connections (tenant_lookup_timestamp)
    WHERE org_id = '' AND lookup_failed_at IS NULL;
CREATE INDEX connections_lookup_failed_at ON connections (lookup_failed_at)
    WHERE lookup_failed_at IS NOT NULL;

-- Dead letter limits.
CREATE INDEX dead_letters_client_id_last_received ON dead_letters (client_id, last_received, id);

COMMENT ON TABLE org_connection_deltas IS
    'Counters of connections. The sum of the deltas of an organization is its number of connections.';
COMMENT ON COLUMN org_connection_deltas.shard IS
    'Each open transaction updates only the counters of its own shard.';
COMMENT ON COLUMN connections.lookup_failed_at IS
    'Time of the latest failure of a lookup or inventory report by a job. Null after a success.';
