-- Who may write for a partition of the queue: whoever holds the latest epoch.

CREATE TABLE partition_epoch (
    queue     TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    owner     TEXT    NOT NULL,
    PRIMARY KEY (queue, partition)
) STRICT, WITHOUT ROWID;
