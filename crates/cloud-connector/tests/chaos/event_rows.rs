//! Reads what the database contains about presence transitions and events.

use std::collections::BTreeMap;

use sqlx::Row as _;

use crate::deployment::ChaosDeployment;

/// A row of the table `presence_history`.
#[derive(Debug, Clone)]
pub struct HistoryRow {
    pub number: u64,
    pub org_id: String,
    pub status: String,
    pub reason: String,
    pub at_micros: i64,
}

impl HistoryRow {
    /// Returns whether another connection of the client has replaced its connection.
    pub fn is_takeover(&self) -> bool {
        self.reason == "takeover"
    }
}

/// The presence transitions of all clients, and the number of events.
pub struct EventRows {
    /// The history of each client, ordered by number.
    pub history: BTreeMap<String, Vec<HistoryRow>>,
    /// Number of all transitions of each client.
    pub transition_counts: BTreeMap<String, u64>,
    pub newest_position: u64,
    /// Number of events without a position.
    pub outbox_count: u64,
}

/// The row of a connected client replaces the row in `disconnected_clients`.
const SELECT_TRANSITION_COUNTS: &str = "SELECT client_id, transition_count FROM disconnected_clients \
     UNION ALL SELECT client_id, transition_count FROM connections";

/// Reads the tables. This is a macro, because SQLite and PostgreSQL have different connection types.
macro_rules! read_rows {
    ($database:expr, $at_micros:literal, $select_positions:literal) => {{
        let sql = concat!(
            "SELECT client_id, number, org_id, status, reason, ",
            $at_micros,
            " FROM presence_history ORDER BY client_id, number"
        );
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        let positions = sqlx::query($select_positions)
            .fetch_one(&mut *$database)
            .await?;
        let mut rows = EventRows {
            history: BTreeMap::new(),
            transition_counts: BTreeMap::new(),
            newest_position: count(positions.get(0)),
            outbox_count: count(positions.get(1)),
        };
        for row in sqlx::query(sql).fetch_all(&mut *$database).await? {
            let history = rows.history.entry(row.get(0)).or_default();
            history.push(HistoryRow {
                number: count(row.get(1)),
                org_id: row.get(2),
                status: row.get(3),
                reason: row.get(4),
                at_micros: row.get(5),
            });
        }
        let counts = sqlx::query(SELECT_TRANSITION_COUNTS);
        for row in counts.fetch_all(&mut *$database).await? {
            rows.transition_counts.insert(row.get(0), count(row.get(1)));
        }
        Ok(rows)
    }};
}

impl EventRows {
    pub async fn read(deployment: &ChaosDeployment) -> Result<Self, String> {
        let rows = match deployment.cluster() {
            None => Self::read_sqlite(deployment).await,
            Some(cluster) => Self::read_postgres(&mut cluster.connect_to_database().await).await,
        };
        rows.map_err(|error| error.to_string())
    }

    async fn read_sqlite(deployment: &ChaosDeployment) -> sqlx::Result<Self> {
        use sqlx::Connection as _;
        let mut database = sqlx::SqliteConnection::connect(&deployment.database_url()).await?;
        read_rows!(
            &mut database,
            "at",
            "SELECT coalesce(max(position), 0), 0 FROM events"
        )
    }

    async fn read_postgres(database: &mut sqlx::PgConnection) -> sqlx::Result<Self> {
        read_rows!(
            database,
            "(EXTRACT(epoch FROM at) * 1000000)::bigint",
            "SELECT position, (SELECT count(*) FROM event_outbox) FROM event_positions \
             WHERE name = 'sequencer'"
        )
    }
}
