//! A connector of either set-up, so that one test says what both must do.

use serde_json::Value;

use super::connector::{Connector, Setup};
use super::eventually;
#[cfg(feature = "external-services")]
use super::fleet::{Fleet, Process};
use super::gateway::Gateway;

/// A connector under test.
pub enum Deployment {
    /// Everything in one process.
    Embedded(Box<Connector>),
    /// Mosquitto, Kafka and PostgreSQL outside; our roles in one process.
    #[cfg(feature = "external-services")]
    Distributed(Box<(Fleet, Process)>),
}

/// What stands in a row, as far as tenants are concerned. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub org_id: String,
    pub account: String,
    pub looked_up: Option<i64>,
    pub failures: i64,
    pub stale: i64,
    /// In microseconds: changes with every write.
    pub updated: i64,
}

/// A client's row in a database file.
pub async fn sqlite_row(path: &std::path::Path, client: &str) -> Option<Row> {
    use sqlx::{Connection as _, Row as _};
    let url = format!("sqlite://{}", path.display());
    let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let row = sqlx::query(
        "SELECT org_id, account, tenant_lookup_timestamp / 1000000, tenant_lookup_failure_count,
                stale_timestamp / 1000000, updated_at FROM connections WHERE client_id = ?",
    )
    .bind(client)
    .fetch_optional(&mut database)
    .await
    .unwrap()?;
    Some(Row {
        org_id: row.get(0),
        account: row.get(1),
        looked_up: row.get(2),
        failures: row.get(3),
        stale: row.get(4),
        updated: row.get(5),
    })
}

/// A client's row in PostgreSQL.
#[cfg(feature = "external-services")]
pub async fn postgres_row(database: &mut sqlx::PgConnection, client: &str) -> Option<Row> {
    use sqlx::Row as _;
    let row = sqlx::query(
        "SELECT org_id, account, floor(EXTRACT(epoch FROM tenant_lookup_timestamp))::bigint,
                tenant_lookup_failure_count::bigint, floor(EXTRACT(epoch FROM stale_timestamp))::bigint,
                (EXTRACT(epoch FROM updated_at) * 1000000)::bigint
           FROM connections WHERE client_id = $1",
    )
    .bind(client)
    .fetch_optional(database)
    .await
    .unwrap()?;
    Some(Row {
        org_id: row.get(0),
        account: row.get(1),
        looked_up: row.get(2),
        failures: row.get(3),
        stale: row.get(4),
        updated: row.get(5),
    })
}

/// Settings, by key.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

impl Deployment {
    pub async fn embedded(settings: Settings<'_>) -> Self {
        let mut setup = Setup::new();
        for (key, value) in settings {
            setup = setup.set(key, value);
        }
        Self::Embedded(Box::new(setup.start().await))
    }

    #[cfg(feature = "external-services")]
    pub async fn distributed(settings: Settings<'_>) -> Self {
        let mut fleet = Fleet::new().await;
        for (key, value) in settings {
            fleet = fleet.set(key, value);
        }
        let process = fleet.start(&[]).await;
        Self::Distributed(Box::new((fleet, process)))
    }

    /// With a PostgreSQL of its own, which a test may stop.
    #[cfg(feature = "external-services")]
    pub async fn alone(settings: Settings<'_>) -> Self {
        use super::services::Service;
        let (mosquitto, postgres) = tokio::join!(Service::mosquitto(), Service::postgres());
        let mut fleet = Fleet::with(mosquitto, Some(postgres), None).await;
        for (key, value) in settings {
            fleet = fleet.set(key, value);
        }
        let process = fleet.start(&[]).await;
        Self::Distributed(Box::new((fleet, process)))
    }

    /// Anew, with other settings.
    pub async fn anew(self, settings: Settings<'_>) -> Self {
        let is_distributed = self.has_outside_broker();
        drop(self);
        #[cfg(feature = "external-services")]
        if is_distributed {
            return Self::distributed(settings).await;
        }
        assert!(!is_distributed);
        Self::embedded(settings).await
    }

    /// Anew, with a gateway to ask; what it says is remembered for a moment only.
    pub async fn asking(self, gateway: &Gateway, more: Settings<'_>) -> Self {
        let mut settings = vec![
            ("tenant.gateway_url", gateway.url.as_str()),
            ("tenant.cache_ttl", "1ms"),
            ("tenant.breaker_probe_interval", "500ms"),
            ("tenant.gateway_timeout", "2s"),
            ("broker.connect_limit.burst", "100000"),
        ];
        settings.extend(more);
        self.anew(&settings).await
    }

    /// Where clients connect.
    pub fn mqtt(&self) -> String {
        match self {
            Self::Embedded(connector) => connector.mqtt.clone(),
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => format!("127.0.0.1:{}", both.0.mosquitto.port),
        }
    }

    /// Whether an outside broker keeps retained messages.
    pub fn has_outside_broker(&self) -> bool {
        !matches!(self, Self::Embedded(_))
    }

    fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        match self {
            Self::Embedded(connector) => connector.request(method, path),
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => both.1.request(method, path),
        }
    }

    /// A request without credentials.
    pub fn bare(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let path = format!("/api/cloud-connector{path}");
        match self {
            Self::Embedded(connector) => connector.bare(method, &path),
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => both.1.bare(method, &path),
        }
    }

    /// The client's status as the API has it.
    pub async fn status(&self, client: &str) -> Value {
        let path = format!("/v2/connections/{client}/status");
        let answer = self.request("GET", &path).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.json().await.unwrap()
    }

    /// Waits until the client is connected, or until it is not; returns its status.
    pub async fn wait_for(&self, client: &str, connected: bool) -> Value {
        self.wait_until(client, |status| {
            (status["status"] == "connected") == connected
        })
        .await
    }

    /// Waits until the client's status is as wanted.
    pub async fn wait_until(&self, client: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let what = format!("the status of {client}");
        eventually(&what, || async {
            let status = self.status(client).await;
            wanted(&status).then_some(status)
        })
        .await
    }

    /// Everybody who is connected.
    pub async fn listed(&self) -> std::collections::HashSet<String> {
        // "Not now" is an answer too: the database may be busy with the drill.
        let body: Value = eventually("the list", || async {
            let request = self.request("GET", "/v2/connections?limit=100000");
            let answer = request.send().await.unwrap();
            match answer.status().as_u16() {
                200 => Some(answer.json().await.unwrap()),
                503 => None,
                other => panic!("{other}"),
            }
        })
        .await;
        let rows = body["data"].as_array().unwrap().iter();
        rows.map(|row| row["client_id"].as_str().unwrap().to_owned())
            .collect()
    }

    pub async fn is_ready(&self) -> bool {
        let (status, _) = match self {
            Self::Embedded(connector) => connector.readiness().await,
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => both.1.readiness().await,
        };
        status == 200
    }

    pub async fn send(&self, client: &str, body: Value) -> (u16, Value) {
        let path = format!("/v2/connections/{client}/message");
        let sent = self
            .request("POST", &path)
            .json(&body)
            .send()
            .await
            .unwrap();
        (sent.status().as_u16(), sent.json().await.unwrap())
    }

    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        match self {
            Self::Embedded(connector) => connector.metric(name, label).await,
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => both.1.metric(name, label).await,
        }
    }

    /// Memory that the connector holds, in MiB.
    pub fn memory(&self) -> u64 {
        let pid = match self {
            Self::Embedded(connector) => connector.pid(),
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => both.1.pid(),
        };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.unwrap().split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() / 1024
    }

    /// The client's row.
    pub async fn row(&self, client: &str) -> Option<Row> {
        match self {
            Self::Embedded(connector) => {
                let path = connector.data_dir().join("cloud-connector.db");
                sqlite_row(&path, client).await
            }
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => postgres_row(&mut both.0.connect().await, client).await,
        }
    }

    /// Counts something in the database behind the connector's back.
    pub async fn count(&self, sql: &'static str) -> i64 {
        match self {
            Self::Embedded(connector) => {
                use sqlx::Connection as _;
                let path = connector.data_dir().join("cloud-connector.db");
                let url = format!("sqlite://{}", path.display());
                let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
                let count = sqlx::query_scalar(sql).fetch_one(&mut database).await;
                count.unwrap()
            }
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => {
                let mut database = both.0.connect().await;
                let count = sqlx::query_scalar(sql).fetch_one(&mut database).await;
                count.unwrap()
            }
        }
    }

    /// Changes something in the database behind the connector's back.
    pub async fn execute(&self, sql: &'static str) {
        match self {
            Self::Embedded(connector) => {
                use sqlx::Connection as _;
                let path = connector.data_dir().join("cloud-connector.db");
                let url = format!("sqlite://{}", path.display());
                let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => {
                let mut database = both.0.connect().await;
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
        }
    }

    /// What inventory was told so far.
    pub async fn inventory(&self) -> Vec<Value> {
        let lines: Vec<Vec<u8>> = match self {
            Self::Embedded(connector) => {
                let file = connector.data_dir().join("inventory.ndjson");
                let text = std::fs::read_to_string(file).unwrap_or_default();
                text.lines().map(|line| line.as_bytes().to_vec()).collect()
            }
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => {
                let brokers = both.0.value("kafka.brokers").to_owned();
                let topic = both.0.value("inventory.topic").to_owned();
                let reading = move || super::services::read_topic(&brokers, &topic);
                tokio::task::spawn_blocking(reading).await.unwrap()
            }
        };
        let read = |line: &Vec<u8>| serde_json::from_slice(line).unwrap();
        lines.iter().map(read).collect()
    }

    /// Kills the connector and starts it again: it subscribes anew.
    pub async fn restart(&mut self) {
        match self {
            Self::Embedded(connector) => {
                connector.kill().await;
                connector.start_again().await;
            }
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => {
                both.1.signal("KILL");
                both.1 = both.0.start(&[]).await;
            }
        }
    }

    /// Runs a command of the program on the connector's database: exit code and both streams.
    pub async fn command(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = match self {
            Self::Embedded(connector) => connector.program(),
            #[cfg(feature = "external-services")]
            Self::Distributed(both) => both.0.program(),
        };
        let done = command.args(args).output().await.unwrap();
        let said = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8(said).unwrap())
    }

    /// Dead letters, by the operator's command.
    pub async fn dead_letters(&self) -> Vec<Value> {
        let list = [
            "dead-letters",
            "list",
            "--output",
            "json",
            "--limit",
            "100000",
        ];
        let (code, said) = self.command(&list).await;
        assert_eq!(code, Some(0), "{said}");
        serde_json::from_str(said.trim()).unwrap_or_else(|_| panic!("{said}"))
    }

    /// Waits until so many dead letters are kept of a client.
    pub async fn wait_for_letters(&self, client: &str, count: usize) -> Vec<Value> {
        let what = format!("{count} dead letters of {client}");
        eventually(&what, || async {
            let mut all = self.dead_letters().await;
            all.retain(|letter| letter["client_id"] == client);
            (all.len() == count).then_some(all)
        })
        .await
    }
}

/// Makes a test of each case for either set-up. A case takes a [`Deployment`]; settings may follow its
/// name.
#[macro_export]
macro_rules! each_deployment {
    ($($case:ident $(with $settings:expr)?),* $(,)?) => {
        mod embedded {
            $(
                #[tokio::test]
                async fn $case() {
                    #[allow(unused_imports, reason = "settings may be constants of the module")]
                    use super::*;
                    let given: &[$crate::support::deployment::Settings<'_>] = &[$($settings)?];
                    let settings = given.first().copied().unwrap_or_default();
                    super::$case($crate::support::Deployment::embedded(settings).await).await;
                }
            )*
        }

        #[cfg(feature = "external-services")]
        mod distributed {
            $(
                #[tokio::test]
                async fn $case() {
                    #[allow(unused_imports, reason = "settings may be constants of the module")]
                    use super::*;
                    let given: &[$crate::support::deployment::Settings<'_>] = &[$($settings)?];
                    let settings = given.first().copied().unwrap_or_default();
                    super::$case($crate::support::Deployment::distributed(settings).await).await;
                }
            )*
        }
    };
}
