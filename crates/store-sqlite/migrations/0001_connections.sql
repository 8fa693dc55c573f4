-- Who is connected now, and what is remembered of those who left.
--
-- Column names are those of the PostgreSQL schema, so that one set of words serves both. Moments are
-- microseconds since 1970 in UTC; JSON is text that SQLite has checked.

CREATE TABLE connections (
    client_id                   TEXT    NOT NULL PRIMARY KEY,
    -- '' in both: belongs to nobody, never shown.
    org_id                      TEXT    NOT NULL,
    account                     TEXT    NOT NULL,
    dialect                     TEXT    NOT NULL,
    kind                        TEXT    NOT NULL,
    -- Where it was heard, and so where it listens.
    topic_prefix                TEXT    NOT NULL,
    canonical_facts             TEXT    NOT NULL CHECK (json_valid(canonical_facts)),
    dispatchers                 TEXT    NOT NULL CHECK (json_valid(dispatchers)),
    tags                        TEXT    NOT NULL CHECK (json_valid(tags)),
    client_name                 TEXT    NOT NULL,
    client_version              TEXT    NOT NULL,
    message_id                  TEXT,
    message_sent                INTEGER NOT NULL,
    -- When inventory last received this host; 0 = it is owed.
    stale_timestamp             INTEGER NOT NULL DEFAULT 0,
    -- When a tenant was last looked for in vain; null = it has one.
    tenant_lookup_timestamp     INTEGER,
    tenant_lookup_failure_count INTEGER NOT NULL DEFAULT 0,
    last_seen                   INTEGER NOT NULL,
    created_at                  INTEGER NOT NULL,
    updated_at                  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The list of an organisation, in the order in which it is shown.
CREATE INDEX connections_org_id_client_id ON connections (org_id, client_id);

CREATE TABLE departed (
    client_id                   TEXT    NOT NULL PRIMARY KEY,
    org_id                      TEXT    NOT NULL,
    account                     TEXT    NOT NULL,
    dialect                     TEXT    NOT NULL,
    kind                        TEXT    NOT NULL,
    topic_prefix                TEXT    NOT NULL,
    canonical_facts             TEXT    NOT NULL CHECK (json_valid(canonical_facts)),
    dispatchers                 TEXT    NOT NULL CHECK (json_valid(dispatchers)),
    tags                        TEXT    NOT NULL CHECK (json_valid(tags)),
    client_name                 TEXT    NOT NULL,
    client_version              TEXT    NOT NULL,
    message_id                  TEXT,
    message_sent                INTEGER NOT NULL,
    tenant_lookup_timestamp     INTEGER,
    tenant_lookup_failure_count INTEGER NOT NULL,
    departed_at                 INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Forgetting those who left long ago.
CREATE INDEX departed_departed_at ON departed (departed_at);
