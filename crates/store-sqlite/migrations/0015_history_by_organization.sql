-- Adds the organization to the key of the presence history. The file
-- crates/store-postgres/migrations/0018_history_by_organization.sql describes the reason.

CREATE TABLE new_presence_history (
    client_id TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    org_id    TEXT    NOT NULL,
    status    TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    PRIMARY KEY (client_id, org_id, number)
) STRICT, WITHOUT ROWID;

INSERT INTO new_presence_history (client_id, number, at, org_id, status, reason)
SELECT client_id, number, at, org_id, status, reason FROM presence_history;

DROP TABLE presence_history;
ALTER TABLE new_presence_history RENAME TO presence_history;

-- Finds the expired rows.
CREATE INDEX presence_history_at ON presence_history (at);
