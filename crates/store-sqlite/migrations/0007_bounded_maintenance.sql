-- Adds what the jobs need to work in chunks. Both databases have the same column names. The file
-- crates/store-postgres/migrations/0007_bounded_maintenance.sql describes the columns.

ALTER TABLE connections ADD COLUMN lookup_failed_at INTEGER;
DROP INDEX connections_inventory_refresh;
CREATE INDEX connections_inventory_refresh ON connections (stale_timestamp)
    WHERE org_id <> '' AND inventory_eligible AND lookup_failed_at IS NULL;
CREATE INDEX connections_missing_tenant ON connections (tenant_lookup_timestamp)
    WHERE org_id = '' AND lookup_failed_at IS NULL;
CREATE INDEX connections_lookup_failed_at ON connections (lookup_failed_at)
    WHERE lookup_failed_at IS NOT NULL;

CREATE INDEX dead_letters_client_id_last_received ON dead_letters (client_id, last_received);
