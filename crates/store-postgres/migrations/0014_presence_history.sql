-- Adds the times and the reason of presence changes to the row of a client, the history of the changes, and the
-- columns of connection_search that find a client of any organization.
--
-- No index contains the new columns of connections, so an update of a known client stays a HOT update.
-- Existing rows have no values. Readers then use the time of the latest online message.
--
-- Locks: the index of the FQDNs is built while writers are blocked (1.4 s with one million clients). After that,
-- readers of connections and connection_search are blocked, too, while columns and empty indexes are added
-- (0.5 s). Both grow with the number of clients. If a table cannot be locked within 10 seconds, the migration
-- changes nothing. In that case, run `cloud-connector migrate` again.
--
-- The columns insights_id and subscription_manager_id of existing rows stay null until the next online message of
-- the client. To fill them here would block recording for 48 s per million clients. Until then, these clients are
-- found by id and FQDN; tenantless clients, which have no search row yet, only by id.
--
-- A process of an earlier version continues to run. It writes search rows without the new columns, with
-- another content_hash, so the next online message in this version writes the row again.

SET LOCAL lock_timeout = '10s';
-- Disables the statement timeout of the program, because the index of a large table takes longer.
SET LOCAL statement_timeout = 0;
SET LOCAL maintenance_work_mem = '256MB';

-- Waits for all writers in the order in which they lock the tables. Does not block readers.
LOCK TABLE connections, disconnected_clients IN EXCLUSIVE MODE;
CREATE INDEX connection_search_fqdn ON connection_search (fqdn) WHERE fqdn IS NOT NULL;

ALTER TABLE connection_search
    ADD COLUMN insights_id             text COLLATE "C",
    ADD COLUMN subscription_manager_id text COLLATE "C";

ALTER TABLE connections
    ADD COLUMN connected_since         timestamptz,
    ADD COLUMN last_seen               timestamptz,
    ADD COLUMN reconnects              bigint NOT NULL DEFAULT 0,
    ADD COLUMN hourly_reconnects       bigint NOT NULL DEFAULT 0,
    ADD COLUMN hourly_reconnects_since timestamptz,
    ADD COLUMN transition_count        bigint NOT NULL DEFAULT 0,
    ADD COLUMN content_hashes          text;

ALTER TABLE disconnected_clients
    ADD COLUMN connected_since         timestamptz,
    ADD COLUMN last_seen               timestamptz,
    ADD COLUMN reconnects              bigint NOT NULL DEFAULT 0,
    ADD COLUMN hourly_reconnects       bigint NOT NULL DEFAULT 0,
    ADD COLUMN hourly_reconnects_since timestamptz,
    ADD COLUMN transition_count        bigint NOT NULL DEFAULT 0,
    ADD COLUMN content_hashes          text,
    ADD COLUMN reason                  text;

CREATE TABLE presence_history (
    client_id text COLLATE "C" NOT NULL,
    number    bigint           NOT NULL,
    at        timestamptz      NOT NULL,
    -- Empty for a tenantless client.
    org_id    text COLLATE "C" NOT NULL,
    status    text             NOT NULL,
    reason    text             NOT NULL,
    PRIMARY KEY (client_id, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);

-- Finds the expired rows. Not a BRIN index: once pages are reused, the range of each page contains an old time.
CREATE INDEX presence_history_at ON presence_history (at);

-- To find a client of any organization by an identifier. The predicates keep clients without the identifier out.
CREATE INDEX connection_search_insights_id
    ON connection_search (insights_id) WHERE insights_id IS NOT NULL;
CREATE INDEX connection_search_subscription_manager_id
    ON connection_search (subscription_manager_id) WHERE subscription_manager_id IS NOT NULL;

-- Returns a text as the search table stores it. PostgreSQL rejects rows with large index entries.
CREATE FUNCTION search_identifier(facts jsonb, fact text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT left((facts ->> fact) COLLATE "C", 255)
$$;

-- Returns a hash of a row of connection_search. The recorder computes the same hash.
DROP FUNCTION search_entry_hash(text, text, bigint[]);
CREATE FUNCTION search_entry_hash(
    org_id text, fqdn text, insights_id text, subscription_manager_id text, term_hashes bigint[]
) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(org_id || chr(31) || COALESCE(fqdn, '') || chr(31)
        || COALESCE(insights_id, '') || chr(31) || COALESCE(subscription_manager_id, '') || chr(31)
        || array_to_string(term_hashes, ','), 0)
$$;

-- Writes the rows of connection_search, for writers other than the recorder. The row of a tenantless client has
-- no terms, so no filter of an organization finds it.
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
    INSERT INTO connection_search (client_id, org_id, content_hash, fqdn, insights_id,
           subscription_manager_id, term_hashes)
    SELECT n.client_id, n.org_id, n.content_hash, n.fqdn, n.insights_id, n.subscription_manager_id,
           n.term_hashes
      FROM (SELECT e.*, search_entry_hash(e.org_id, e.fqdn, e.insights_id,
                   e.subscription_manager_id, e.term_hashes) AS content_hash
              FROM (SELECT client_id, org_id, search_fqdn(canonical_facts) AS fqdn,
                           search_identifier(canonical_facts, 'insights_id') AS insights_id,
                           search_identifier(canonical_facts, 'subscription_manager_id')
                               AS subscription_manager_id,
                           CASE WHEN org_id = '' THEN '{}' ELSE
                           ARRAY(SELECT hashtextextended(org_id || chr(31) || term, 0)
                                   FROM search_terms(canonical_facts, dispatchers, tags) AS t (term)
                                  WHERE term IS NOT NULL LIMIT 256) END AS term_hashes
                      FROM new_rows OFFSET 0) AS e OFFSET 0) AS n
     WHERE n.content_hash IS DISTINCT FROM (
               SELECT s.content_hash FROM connection_search AS s WHERE s.client_id = n.client_id)
    ON CONFLICT (client_id) DO UPDATE SET org_id = excluded.org_id,
           content_hash = excluded.content_hash, fqdn = excluded.fqdn,
           insights_id = excluded.insights_id,
           subscription_manager_id = excluded.subscription_manager_id,
           term_hashes = excluded.term_hashes;
    RETURN NULL;
END
$$;

-- Retention deletes the search rows of disconnected clients. A tenantless connection that is deleted without a
-- disconnect would keep its search row.
CREATE FUNCTION delete_tenantless_search_rows() RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM connection_search AS s USING (
        SELECT client_id FROM old_rows WHERE org_id = '' ORDER BY client_id) AS o
     WHERE s.client_id = o.client_id
       AND NOT EXISTS (SELECT FROM disconnected_clients AS d WHERE d.client_id = o.client_id)
       AND NOT EXISTS (SELECT FROM connections AS c WHERE c.client_id = o.client_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER connections_search_deleted AFTER DELETE ON connections
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    WHEN (current_setting('cc.recorder', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION delete_tenantless_search_rows();

COMMENT ON COLUMN connection_search.org_id IS 'Empty for a tenantless client.';
COMMENT ON COLUMN connection_search.insights_id IS
    'The first 255 characters of the fact. Null in rows of earlier versions.';
COMMENT ON COLUMN connection_search.subscription_manager_id IS
    'The first 255 characters of the fact. Null in rows of earlier versions.';
COMMENT ON COLUMN connections.connected_since IS
    'Time at which the connection became visible to the organization. Null in rows of earlier versions.';
COMMENT ON COLUMN connections.last_seen IS
    'Time of the latest message of the client. Written with other changes of the row, otherwise at most once per presence.last_seen_interval.';
COMMENT ON COLUMN connections.reconnects IS
    'Number of times the client has connected again since it was first seen in its organization.';
COMMENT ON COLUMN connections.hourly_reconnects IS
    'Number of reconnects since hourly_reconnects_since, which is at most one hour before the latest reconnect.';
COMMENT ON COLUMN connections.transition_count IS
    'Number of all presence transitions of the client, including those without a row in presence_history.';
COMMENT ON COLUMN connections.content_hashes IS
    'Hashes of the facts, dispatchers, tags and version that the client sent, to detect changes.';
COMMENT ON COLUMN disconnected_clients.reason IS
    'Why the client is disconnected. Null in rows of earlier versions.';
COMMENT ON COLUMN presence_history.number IS
    'Number of the transition. A gap is the number of transitions that were merged in one batch.';
