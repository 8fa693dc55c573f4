-- Adds a summary of the search terms of a client to the index that lists an organization in the order of the
-- client ids. A filter then reads only the index, and checks only the rows that can match.
--
-- `search_signature_1` to `search_signature_4` have bits for the facts, tags and dispatchers of the client. The
-- recorder computes them (src/search_signature.rs). Rows from before this migration have all bits, so every filter
-- checks them, until the next online message of the client.
--
-- `search_fqdn` is the start of the FQDN in lower case, or '' if the client has no FQDN. Null means that every
-- filter for a prefix must check the row.
--
-- Whoever changes facts, tags or dispatchers by hand must set the signatures to -1 and `search_fqdn` to null.

ALTER TABLE connections ADD COLUMN search_signature_1 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE connections ADD COLUMN search_signature_2 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE connections ADD COLUMN search_signature_3 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE connections ADD COLUMN search_signature_4 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE connections ADD COLUMN search_fqdn TEXT;

ALTER TABLE disconnected_clients ADD COLUMN search_signature_1 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE disconnected_clients ADD COLUMN search_signature_2 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE disconnected_clients ADD COLUMN search_signature_3 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE disconnected_clients ADD COLUMN search_signature_4 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE disconnected_clients ADD COLUMN search_fqdn TEXT;

-- A larger index replaces the index: recording writes the same number of index entries.
DROP INDEX connections_org_id_client_id;
CREATE INDEX connections_search ON connections (org_id, client_id, search_signature_1, search_signature_2,
    search_signature_3, search_signature_4, search_fqdn);
