//! Compares the database, the API and the dead letters with the expected state of each client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;
use sqlx::Row as _;

use crate::clients::History;
use crate::deployment::ChaosDeployment;
use crate::model::Online;
use crate::plan::{Profile, TenantKind};
use crate::recovery::RECOVERY_CLIENT_PREFIX;
use crate::schedule::MAX_CLOCK_SKEW_SECONDS;
use test_support::cluster::API_KEY;

/// Profile and history of one client, for the check at the end of a round.
pub struct TrackedClient {
    pub profile: Profile,
    pub history: Arc<Mutex<History>>,
}

/// A row of the table `connections`.
#[derive(Debug, Clone)]
pub struct ConnectionRow {
    org_id: String,
    account: String,
    dialect: String,
    facts: Value,
    dispatchers: Value,
    tags: Value,
    message_id: Option<String>,
    /// `sent` time of the latest online message.
    message_sent_at: Timestamp,
}

/// The rows in the database and the lists of the API, read at one time.
pub struct ObservedState {
    /// Rows of the table `connections`, by client id.
    pub rows: BTreeMap<String, ConnectionRow>,
    /// Topic and payload SHA-256 of each dead letter, by client id.
    pub dead_letters: BTreeMap<String, BTreeSet<(String, String)>>,
    /// Items of the API's connection lists, by organization id and client id.
    pub listed_connections: BTreeMap<(String, String), Value>,
    /// Maximum difference between the clocks of the client and the process that received a message.
    pub max_clock_skew: SignedDuration,
}

/// A difference between the expected and the observed state of a client.
pub struct Mismatch {
    pub client_id: String,
    pub description: String,
}

/// Start of the query for all rows of `connections`. The expression for `message_sent_at` is missing
/// at the end, because it differs between SQLite and PostgreSQL.
const SELECT_CONNECTIONS: &str =
    "SELECT client_id, org_id, coalesce(account, ''), dialect, CAST(canonical_facts AS text),
     CAST(dispatchers AS text), CAST(tags AS text), message_id, ";
const SELECT_DEAD_LETTERS: &str = "SELECT client_id, topic, sha256 FROM dead_letters";

impl ObservedState {
    pub async fn read(deployment: &ChaosDeployment) -> Result<Self, String> {
        let (rows, dead_letters) = match deployment.cluster() {
            None => read_sqlite(deployment).await,
            Some(cluster) => read_postgres(&mut cluster.connect_to_database().await).await,
        }
        .map_err(|error| error.to_string())?;
        let mut listed_connections = BTreeMap::new();
        for tenant in [TenantKind::Default, TenantKind::Other] {
            let (org_id, _) = tenant.org_and_account();
            for item in list_connections(deployment, org_id).await? {
                let client_id = item["client_id"].as_str().unwrap_or_default().to_owned();
                listed_connections.insert((org_id.to_owned(), client_id), item);
            }
        }
        let mut dead_letters_by_client: BTreeMap<String, BTreeSet<(String, String)>> =
            BTreeMap::new();
        for (client_id, topic, sha256) in dead_letters {
            dead_letters_by_client
                .entry(client_id)
                .or_default()
                .insert((topic, sha256));
        }
        // Embedded mode has a single process, whose clock is not shifted.
        let max_skew_seconds = deployment.cluster().map_or(0, |_| MAX_CLOCK_SKEW_SECONDS);
        Ok(Self {
            max_clock_skew: SignedDuration::from_secs(max_skew_seconds),
            rows: rows.into_iter().collect(),
            dead_letters: dead_letters_by_client,
            listed_connections,
        })
    }
}

/// Client id, topic and payload SHA-256 of each dead letter.
type DeadLetters = Vec<(String, String, String)>;
/// Client id and row of each connection.
type Rows = Vec<(String, ConnectionRow)>;

/// Reads the tables `connections` and `dead_letters`. This is a macro, because SQLite and
/// PostgreSQL have different connection types.
macro_rules! read_tables {
    ($database:expr, $message_sent_micros:literal) => {{
        let sql = sqlx::AssertSqlSafe(format!(
            "{SELECT_CONNECTIONS} {} FROM connections",
            $message_sent_micros
        ));
        let rows = sqlx::query(sql).fetch_all(&mut *$database).await?;
        let rows = rows.iter().map(|row| {
            let json = |column: usize| {
                let text: Option<String> = row.get(column);
                text.map_or(Value::Null, |text| {
                    serde_json::from_str(&text).unwrap_or(Value::String(text))
                })
            };
            let connection = ConnectionRow {
                org_id: row.get(1),
                account: row.get(2),
                dialect: row.get(3),
                facts: json(4),
                dispatchers: json(5),
                tags: json(6),
                message_id: row.get(7),
                message_sent_at: Timestamp::from_microsecond(row.get(8)).unwrap_or_default(),
            };
            (row.get(0), connection)
        });
        let rows = rows.collect();
        let dead_letters = sqlx::query(SELECT_DEAD_LETTERS)
            .fetch_all(&mut *$database)
            .await?;
        let dead_letters = dead_letters
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)));
        Ok((rows, dead_letters.collect()))
    }};
}

async fn read_sqlite(deployment: &ChaosDeployment) -> sqlx::Result<(Rows, DeadLetters)> {
    use sqlx::Connection as _;
    let url = format!("sqlite://{}", deployment.database_file().display());
    let mut database = sqlx::SqliteConnection::connect(&url).await?;
    read_tables!(&mut database, "message_sent")
}

async fn read_postgres(database: &mut sqlx::PgConnection) -> sqlx::Result<(Rows, DeadLetters)> {
    read_tables!(
        database,
        "(EXTRACT(epoch FROM message_sent) * 1000000)::bigint"
    )
}

async fn list_connections(
    deployment: &ChaosDeployment,
    org_id: &str,
) -> Result<Vec<Value>, String> {
    let path = "/api/cloud-connector/v2/connections?limit=10000";
    let response = test_support::http_client()
        .get(format!("{}{path}", deployment.api_url))
        .header("x-rh-cloud-connector-client-id", "tester")
        .header("x-rh-cloud-connector-psk", API_KEY)
        .header("x-rh-cloud-connector-org-id", org_id)
        .send()
        .await
        .map_err(|error| format!("the API request failed: {error}"))?;
    let status = response.status();
    let body = response.text().await.map_err(|error| error.to_string())?;
    if status != 200 {
        return Err(format!("the API returned {status}: {body}"));
    }
    let mut body: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
    match body["data"].take() {
        Value::Array(items) => Ok(items),
        other => Err(format!("the API returned `data` that is no array: {other}")),
    }
}

/// Returns all differences between the expected and the observed state.
pub fn find_mismatches(clients: &[TrackedClient], observed: &ObservedState) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    let mut expected_client_ids = BTreeSet::new();
    for client in clients {
        let client_id = &client.profile.client_id;
        expected_client_ids.insert(client_id);
        let history = client.history.lock();
        let mut add = |description: String| {
            mismatches.push(Mismatch {
                client_id: client_id.clone(),
                description,
            });
        };
        if history.expected.is_uncertain {
            add("pending: a message is not acknowledged yet".to_owned());
            continue;
        }
        for description in compare_client(
            &client.profile,
            history.expected.expected_row_content(),
            observed,
        ) {
            add(description);
        }
        let no_dead_letters = BTreeSet::new();
        let observed_dead_letters = observed
            .dead_letters
            .get(client_id)
            .unwrap_or(&no_dead_letters);
        for (topic, sha256) in history
            .expected
            .dead_letters
            .difference(observed_dead_letters)
        {
            add(format!("missing dead letter: {topic} {sha256}"));
        }
        for (topic, sha256) in observed_dead_letters.difference(&history.expected.dead_letters) {
            add(format!("unexpected dead letter: {topic} {sha256}"));
        }
    }
    let observed_client_ids = observed.rows.keys().chain(observed.dead_letters.keys());
    for client_id in observed_client_ids.chain(observed.listed_connections.keys().map(|(_, id)| id))
    {
        if !expected_client_ids.contains(client_id)
            && !client_id.starts_with(RECOVERY_CLIENT_PREFIX)
        {
            mismatches.push(Mismatch {
                client_id: client_id.clone(),
                description: "unknown client".to_owned(),
            });
        }
    }
    mismatches
}

/// Compares the row and the API list items of one client with the latest online message. Returns
/// the differences. `expected_online` is `None` if the client must have no row.
fn compare_client(
    profile: &Profile,
    expected_online: Option<&Online>,
    observed: &ObservedState,
) -> Vec<String> {
    let (org_id, account) = profile.tenant.org_and_account();
    let row = observed.rows.get(&profile.client_id);
    let mut descriptions = Vec::new();
    match (expected_online, row) {
        (None, None) => {}
        (None, Some(_)) => descriptions.push("disconnected, but has a row".to_owned()),
        (Some(_), None) => descriptions.push("connected, but has no row".to_owned()),
        (Some(online), Some(row)) => {
            let skew = observed.max_clock_skew;
            add_row_differences(&mut descriptions, profile, online, row, skew);
        }
    }
    for tenant in [TenantKind::Default, TenantKind::Other] {
        let list_org_id = tenant.org_and_account().0;
        let org_and_client_id = (list_org_id.to_owned(), profile.client_id.clone());
        let expected_in_list = expected_online.filter(|_| list_org_id == org_id);
        match (
            observed.listed_connections.get(&org_and_client_id),
            expected_in_list,
        ) {
            (None, None) => {}
            (Some(_), None) => {
                descriptions.push(format!("must not be in the list of {list_org_id}"));
            }
            (None, Some(_)) => descriptions.push(format!("missing in the list of {list_org_id}")),
            (Some(item), Some(online)) => {
                let is_empty = |value: &Value| value.is_null() || *value == serde_json::json!({});
                let is_same = |field: &str, expected: &Value| {
                    item[field] == *expected || (is_empty(&item[field]) && is_empty(expected))
                };
                let is_correct = is_same("canonical_facts", &online.facts)
                    && is_same("dispatchers", &online.dispatchers)
                    && is_same("tags", &online.tags)
                    && item["account"] == *account
                    && item["org_id"] == *org_id;
                if !is_correct {
                    descriptions.push(format!("wrong item in the list of {list_org_id}: {item}"));
                }
            }
        }
    }
    descriptions
}

/// Compares a row with the latest online message of the client. Adds the differences to
/// `descriptions`.
fn add_row_differences(
    descriptions: &mut Vec<String>,
    profile: &Profile,
    online: &Online,
    row: &ConnectionRow,
    max_clock_skew: SignedDuration,
) {
    let (org_id, account) = profile.tenant.org_and_account();
    let dialect = if profile.uses_handshake {
        "handshake"
    } else {
        "status"
    };
    let mut check_column = |column: &str, is_correct: bool| {
        if !is_correct {
            descriptions.push(format!("wrong value in column {column}"));
        }
    };
    check_column("org_id", row.org_id == org_id);
    check_column("account", row.account == account);
    check_column("dialect", row.dialect == dialect);
    check_column("canonical_facts", row.facts == online.facts);
    check_column("dispatchers", row.dispatchers == online.dispatchers);
    check_column("tags", row.tags == online.tags);
    check_column("message_id", row.message_id == online.message_id);
    // A message whose `sent` is after its receive time is stored with its receive time.
    let is_sent_correct = match online.earliest_receive_time {
        Some(earliest) => {
            row.message_sent_at >= earliest - max_clock_skew
                && row.message_sent_at <= Timestamp::now() + max_clock_skew
        }
        None => {
            row.message_sent_at <= online.sent
                && row.message_sent_at >= online.sent - max_clock_skew
        }
    };
    check_column("message_sent", is_sent_correct);
}
