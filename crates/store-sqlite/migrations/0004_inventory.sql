-- Whether inventory would take the host, as it described itself: only then is it owed to inventory.
ALTER TABLE connections ADD COLUMN can_be_announced INTEGER NOT NULL DEFAULT 1;

-- What the updaters look for: hosts that inventory should hear of again, and clients whose
-- organisation should be looked for again.
CREATE INDEX connections_stale ON connections (stale_timestamp)
    WHERE org_id <> '' AND can_be_announced;
CREATE INDEX connections_tenantless ON connections (tenant_lookup_timestamp) WHERE org_id = '';

-- An updater that works on the row holds it until then; nobody else does, and recording does not care.
ALTER TABLE connections ADD COLUMN claimed_until INTEGER;
