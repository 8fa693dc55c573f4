-- Adds a summary of the search terms of a client to the index that lists an organization in the order of the
-- client ids. A filter then reads only the index, and the rows that can match.
--
-- `search_signature_1` and `search_signature_2` have bits for the facts, tags and dispatchers of the client. The
-- recorder computes them (src/search_signature.rs). -1 has all bits, so every filter checks the row. Rows from
-- before this migration have -1 until the next online message of the client.
--
-- A program other than the recorder that changes facts, tags or dispatchers must set both columns to -1.

ALTER TABLE connections ADD COLUMN search_signature_1 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE connections ADD COLUMN search_signature_2 INTEGER NOT NULL DEFAULT -1;

ALTER TABLE disconnected_clients ADD COLUMN search_signature_1 INTEGER NOT NULL DEFAULT -1;
ALTER TABLE disconnected_clients ADD COLUMN search_signature_2 INTEGER NOT NULL DEFAULT -1;

-- A larger index replaces the index, so recording writes the same number of index entries.
DROP INDEX connections_org_id_client_id;
CREATE INDEX connections_search ON connections (org_id, client_id, search_signature_1, search_signature_2);
