-- Adds the organization to the key of the presence history. A caller of one organization then reads only the entries
-- of the organization. With the key (client_id, number), the request took longer if another organization had entries
-- of the client, which revealed that the client exists.

SET LOCAL lock_timeout = '10s';
-- Disables the statement timeout of the program, because the index of a large table takes longer.
SET LOCAL statement_timeout = 0;

ALTER TABLE presence_history DROP CONSTRAINT presence_history_pkey,
    ADD PRIMARY KEY (client_id, org_id, number);
