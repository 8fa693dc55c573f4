-- Moves the index for the inventory refresh from connections to a small table of its own. With the index
-- on stale_timestamp, every update of a connection added an entry to each index of connections. Without
-- it, PostgreSQL changes no index (HOT) if neither the tenant nor the result of a lookup changes.
--
-- A process of an earlier version continues to run. Its inventory refresh reads the whole table, so upgrade
-- the role `updaters` soon after the migration.

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

-- The first statement waits for all writers, but does not block readers.
LOCK TABLE connections IN EXCLUSIVE MODE;
LOCK TABLE connections IN ACCESS EXCLUSIVE MODE;

CREATE TABLE inventory_reports (
    client_id   text COLLATE "C" NOT NULL,
    reported_at timestamptz      NOT NULL
) WITH (fillfactor = 80);
INSERT INTO inventory_reports (client_id, reported_at)
SELECT client_id, stale_timestamp FROM connections WHERE org_id <> '' AND inventory_eligible;
ALTER TABLE inventory_reports ADD PRIMARY KEY (client_id);
CREATE INDEX inventory_reports_reported_at ON inventory_reports (reported_at);
ANALYZE inventory_reports;

-- Copies stale_timestamp of the connections that inventory accepts. Every transaction locks a connection
-- before its row in inventory_reports, so the rows cause no deadlocks.
CREATE FUNCTION maintain_inventory_reports() RETURNS trigger
LANGUAGE plpgsql
-- PL/pgSQL caches query plans. Without this setting, a plan that was cached while the tables were
-- small would use sequential scans on large tables.
SET enable_seqscan = off AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        TRUNCATE inventory_reports;
    ELSIF TG_OP = 'DELETE' THEN
        DELETE FROM inventory_reports
         WHERE client_id = ANY (ARRAY(SELECT client_id FROM old_rows));
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO inventory_reports (client_id, reported_at)
        SELECT client_id, stale_timestamp FROM new_rows WHERE org_id <> '' AND inventory_eligible
        ON CONFLICT (client_id) DO UPDATE SET reported_at = excluded.reported_at;
    ELSE
        -- EXCEPT, because PostgreSQL joins transition tables with a nested loop.
        INSERT INTO inventory_reports (client_id, reported_at)
        SELECT client_id, stale_timestamp FROM new_rows WHERE org_id <> '' AND inventory_eligible
        EXCEPT
        SELECT client_id, stale_timestamp FROM old_rows WHERE org_id <> '' AND inventory_eligible
        ON CONFLICT (client_id) DO UPDATE SET reported_at = excluded.reported_at;
        DELETE FROM inventory_reports WHERE client_id = ANY (ARRAY(
            SELECT client_id FROM old_rows WHERE org_id <> '' AND inventory_eligible EXCEPT
            SELECT client_id FROM new_rows WHERE org_id <> '' AND inventory_eligible));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER connections_reports_inserted AFTER INSERT ON connections
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION maintain_inventory_reports();
CREATE TRIGGER connections_reports_updated AFTER UPDATE ON connections
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION maintain_inventory_reports();
CREATE TRIGGER connections_reports_deleted AFTER DELETE ON connections
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION maintain_inventory_reports();
CREATE TRIGGER connections_reports_truncated AFTER TRUNCATE ON connections
    FOR EACH STATEMENT EXECUTE FUNCTION maintain_inventory_reports();

DROP INDEX connections_inventory_refresh;
-- Free space in each page, so that the new versions of its rows fit into the page. With 70, 11 % of the
-- updates in a test did not fit; with 60, 3 %; with 50, none.
ALTER TABLE connections SET (fillfactor = 50);

COMMENT ON TABLE inventory_reports IS
    'The connections that inventory accepts. Triggers copy the time from connections.';
COMMENT ON COLUMN inventory_reports.reported_at IS
    'connections.stale_timestamp: time of the latest delivered report. The Unix epoch if one is pending.';
