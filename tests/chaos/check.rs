//! Table, API and dead letters against the model, client by client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use sqlx::Row as _;

use crate::clients::History;
use crate::model::Word;
use crate::plan::{Profile, Tenant};
use crate::setup::SetUp;
use crate::support::fleet::KEY;

/// A client, and what is known of it.
pub struct TrackedClient {
    pub manner: Profile,
    pub story: Arc<Mutex<History>>,
}

/// A row of the table.
#[derive(Debug, Clone)]
pub struct Row {
    org_id: String,
    account: String,
    dialect: String,
    facts: Value,
    dispatchers: Value,
    tags: Value,
    message_id: Option<String>,
    sent: Timestamp,
}

/// All that the set-up shows.
pub struct ObservedState {
    pub rows: BTreeMap<String, Row>,
    pub letters: BTreeMap<String, BTreeSet<(String, String)>>,
    /// By organisation and client.
    pub listed: BTreeMap<(String, String), Value>,
}

/// What is not as it should be.
pub struct Mismatch {
    pub client: String,
    pub what: String,
}

const ROWS: &str =
    "SELECT client_id, org_id, coalesce(account, ''), dialect, CAST(canonical_facts AS text),
     CAST(dispatchers AS text), CAST(tags AS text), message_id, ";
const LETTERS: &str = "SELECT client_id, topic, sha256 FROM dead_letters";

impl ObservedState {
    pub async fn now(set_up: &SetUp) -> Result<Self, String> {
        let (rows, letters) = match set_up.services() {
            None => from_sqlite(set_up).await,
            Some(fleet) => from_postgres(&mut fleet.connect().await).await,
        }
        .map_err(|error| error.to_string())?;
        let mut listed = BTreeMap::new();
        for tenant in [Tenant::Default, Tenant::Other] {
            let (org, _) = tenant.names();
            for row in list(set_up, org).await? {
                let client = row["client_id"].as_str().unwrap_or_default().to_owned();
                listed.insert((org.to_owned(), client), row);
            }
        }
        let mut by_client: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
        for (client, topic, hash) in letters {
            by_client.entry(client).or_default().insert((topic, hash));
        }
        Ok(Self {
            rows: rows.into_iter().collect(),
            letters: by_client,
            listed,
        })
    }
}

type Letters = Vec<(String, String, String)>;
type Rows = Vec<(String, Row)>;

macro_rules! read {
    ($database:expr, $sent:literal) => {{
        let sql = sqlx::AssertSqlSafe(format!("{ROWS} {} FROM connections", $sent));
        let rows = sqlx::query(sql).fetch_all(&mut *$database).await?;
        let rows = rows.iter().map(|row| {
            let json = |column: usize| {
                let text: Option<String> = row.get(column);
                text.map_or(Value::Null, |text| {
                    serde_json::from_str(&text).unwrap_or(Value::String(text))
                })
            };
            let kept = Row {
                org_id: row.get(1),
                account: row.get(2),
                dialect: row.get(3),
                facts: json(4),
                dispatchers: json(5),
                tags: json(6),
                message_id: row.get(7),
                sent: Timestamp::from_microsecond(row.get(8)).unwrap_or_default(),
            };
            (row.get(0), kept)
        });
        let rows = rows.collect();
        let letters = sqlx::query(LETTERS).fetch_all(&mut *$database).await?;
        let letters = letters
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)));
        Ok((rows, letters.collect()))
    }};
}

async fn from_sqlite(set_up: &SetUp) -> sqlx::Result<(Rows, Letters)> {
    use sqlx::Connection as _;
    let url = format!("sqlite://{}", set_up.database_file().display());
    let mut database = sqlx::SqliteConnection::connect(&url).await?;
    read!(&mut database, "message_sent")
}

async fn from_postgres(database: &mut sqlx::PgConnection) -> sqlx::Result<(Rows, Letters)> {
    read!(
        database,
        "(EXTRACT(epoch FROM message_sent) * 1000000)::bigint"
    )
}

async fn list(set_up: &SetUp, org: &str) -> Result<Vec<Value>, String> {
    let path = "/api/cloud-connector/v2/connections?limit=10000";
    let answer = crate::support::http()
        .get(format!("{}{path}", set_up.api))
        .header("x-rh-cloud-connector-client-id", "tester")
        .header("x-rh-cloud-connector-psk", KEY)
        .header("x-rh-cloud-connector-org-id", org)
        .send()
        .await
        .map_err(|error| format!("the API does not answer: {error}"))?;
    let status = answer.status();
    let body = answer.text().await.map_err(|error| error.to_string())?;
    if status != 200 {
        return Err(format!("the API answers {status}: {body}"));
    }
    let mut body: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
    match body["data"].take() {
        Value::Array(rows) => Ok(rows),
        other => Err(format!("the API lists {other}")),
    }
}

/// Everything that differs from the model.
pub fn differences(fleet: &[TrackedClient], seen: &ObservedState) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    for client in fleet {
        let name = &client.manner.name;
        known.insert(name);
        let story = client.story.lock();
        let mut tell = |what: String| {
            found.push(Mismatch {
                client: name.clone(),
                what,
            });
        };
        if story.model.is_open {
            tell("has not settled: a message of it is not acknowledged".to_owned());
            continue;
        }
        for what in of_client(&client.manner, story.model.row(), seen) {
            tell(what);
        }
        let none = BTreeSet::new();
        let letters = seen.letters.get(name).unwrap_or(&none);
        for (topic, hash) in story.model.letters.difference(letters) {
            tell(format!("a dead letter is missing: {topic} {hash}"));
        }
        for (topic, hash) in letters.difference(&story.model.letters) {
            tell(format!("a dead letter that should not be: {topic} {hash}"));
        }
    }
    let rows = seen.rows.keys().chain(seen.letters.keys());
    for name in rows.chain(seen.listed.keys().map(|(_, name)| name)) {
        if !known.contains(name) {
            found.push(Mismatch {
                client: name.clone(),
                what: "a stranger".to_owned(),
            });
        }
    }
    found
}

fn of_client(manner: &Profile, expected: Option<&Word>, seen: &ObservedState) -> Vec<String> {
    let (org, account) = manner.tenant.names();
    let row = seen.rows.get(&manner.name);
    let mut found = Vec::new();
    match (expected, row) {
        (None, None) => {}
        (None, Some(_)) => found.push("a ghost: it has a row, and is gone".to_owned()),
        (Some(_), None) => found.push("lost: it is connected, and has no row".to_owned()),
        (Some(word), Some(row)) => compare(&mut found, manner, word, row),
    }
    for tenant in [Tenant::Default, Tenant::Other] {
        let its = tenant.names().0;
        let key = (its.to_owned(), manner.name.clone());
        match (seen.listed.get(&key), expected.filter(|_| its == org)) {
            (None, None) => {}
            (Some(_), None) => found.push(format!("a ghost in the list of {its}")),
            (None, Some(_)) => found.push(format!("not in the list of {its}")),
            (Some(shown), Some(word)) => {
                let empty = |value: &Value| value.is_null() || *value == serde_json::json!({});
                let same = |key: &str, wanted: &Value| {
                    shown[key] == *wanted || (empty(&shown[key]) && empty(wanted))
                };
                let is_right = same("canonical_facts", &word.facts)
                    && same("dispatchers", &word.dispatchers)
                    && same("tags", &word.tags)
                    && shown["account"] == *account
                    && shown["org_id"] == *org;
                if !is_right {
                    found.push(format!("the list of {its} shows {shown}"));
                }
            }
        }
    }
    found
}

fn compare(found: &mut Vec<String>, manner: &Profile, word: &Word, row: &Row) {
    let (org, account) = manner.tenant.names();
    let dialect = if manner.handshake {
        "handshake"
    } else {
        "status"
    };
    let mut demand = |what: &str, is_right: bool| {
        if !is_right {
            found.push(format!("{what} differs"));
        }
    };
    demand("org_id", row.org_id == org);
    demand("account", row.account == account);
    demand("dialect", row.dialect == dialect);
    demand("canonical_facts", row.facts == word.facts);
    demand("dispatchers", row.dispatchers == word.dispatchers);
    demand("tags", row.tags == word.tags);
    demand("message_id", row.message_id == word.id);
    let sent = match word.received_after {
        Some(after) => row.sent >= after && row.sent <= Timestamp::now(),
        None => row.sent == word.sent,
    };
    demand("message_sent", sent);
}
