//! The two set-ups, with services of their own: these are restarted, too.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use tokio::sync::Mutex;

use crate::plan::{Fault, Kind, Profile, ROLES, Service as Which, Tenant};
use crate::process::Process;
use crate::support::fleet::{Fleet, KEY};
use crate::support::program;
use crate::support::services::{Service, free_port};

/// After a crash of the embedded broker, who stays away this long is gone.
const RECONNECT_GRACE: Duration = Duration::from_secs(5);
/// All that a long run can make: of what is kept, none may be forgotten.
const LETTERS_IN_ALL: &str = "1000000";

pub struct SetUp {
    pub kind: Kind,
    pub processes: Vec<Arc<Mutex<Process>>>,
    services: Option<Arc<Fleet>>,
    /// Where clients connect.
    pub mqtt: String,
    /// Who answers for the API.
    pub api: String,
    pub folder: PathBuf,
}

impl SetUp {
    pub async fn start(kind: Kind, folder: &Path, fleet: &[Profile]) -> Result<Self, String> {
        let tenants = folder.join("tenants.json");
        std::fs::write(&tenants, tenants_file(fleet)).map_err(|error| error.to_string())?;
        let tenants = tenants.display().to_string();
        let set_up = match kind {
            Kind::Embedded => embedded(folder, tenants),
            Kind::Distributed => distributed(folder, tenants).await,
        };
        let starts = set_up.processes.iter().map(|process| async {
            let mut process = process.lock().await;
            process.start().await
        });
        for started in futures::future::join_all(starts).await {
            started?;
        }
        Ok(set_up)
    }

    /// Lets a fault strike, and returns when it is over and how long the recovery took.
    pub async fn suffer(&self, fault: Fault) -> Result<Duration, String> {
        match fault {
            Fault::Kill { process, away } => {
                let mut process = self.processes[process].lock().await;
                process.kill().await?;
                tokio::time::sleep(away).await;
                process.start().await
            }
            Fault::Pause { process, length } => {
                let mut process = self.processes[process].lock().await;
                process.pause(length).await?;
                Ok(Duration::ZERO)
            }
            Fault::Restart { process } => {
                let mut process = self.processes[process].lock().await;
                process.stop().await?;
                process.start().await
            }
            Fault::Service {
                service,
                hard,
                away,
            } => {
                let service = self.service(service);
                if hard {
                    service.kill().await;
                } else {
                    service.stop().await;
                }
                tokio::time::sleep(away).await;
                let began = Instant::now();
                service.start_again().await;
                Ok(began.elapsed())
            }
        }
    }

    fn service(&self, which: Which) -> &Service {
        let services = self.services.as_ref().expect("only where there are some");
        let service = match which {
            Which::Mosquitto => Some(&services.mosquitto),
            Which::Kafka => services.kafka.as_ref(),
            Which::Postgres => services.postgres.as_ref(),
        };
        service.expect("it is a private one")
    }

    /// Waits until everybody is ready; an error if one is not, or has ended.
    pub async fn all_ready(&self, within: Duration) -> Result<(), String> {
        let deadline = Instant::now() + within;
        for process in &self.processes {
            let mut process = process.lock().await;
            loop {
                process.check_alive()?;
                if process.is_ready().await {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(format!("{} is not ready in the end", process.name));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// How long what is there must hold before it is believed: whoever stayed away is ended then, and
    /// whoever came back must not be.
    pub fn must_hold_for(&self) -> Duration {
        match self.kind {
            Kind::Embedded => RECONNECT_GRACE + Duration::from_secs(1),
            Kind::Distributed => Duration::from_secs(3),
        }
    }

    pub fn database_file(&self) -> PathBuf {
        self.folder.join("data/cloud-connector.db")
    }

    pub fn services(&self) -> Option<&Fleet> {
        self.services.as_deref()
    }

    /// Keeps what services logged, which would go with them.
    pub fn keep_logs(&self) {
        let Some(services) = &self.services else {
            return;
        };
        let all = [
            ("mosquitto", Some(&services.mosquitto)),
            ("kafka", services.kafka.as_ref()),
            ("postgres", services.postgres.as_ref()),
        ];
        for (name, service) in all {
            if let Some(service) = service {
                let kept = self.folder.join(format!("{name}.log"));
                let _ = std::fs::copy(service.file("log"), kept);
            }
        }
    }
}

fn embedded(folder: &Path, tenants: String) -> SetUp {
    let (http, mqtt) = (address(), address());
    let data = folder.join("data");
    let (listen_http, listen_mqtt) = (http.clone(), mqtt.clone());
    let command = move || {
        let mut command = program();
        command
            .args(["run", "--http", &listen_http, "--mqtt", &listen_mqtt])
            .arg("--data-dir")
            .arg(&data)
            .env("CLOUD_CONNECTOR__TENANT__STATIC_FILE", &tenants)
            .env("CLOUD_CONNECTOR__API__KEYS__TESTER", KEY)
            .env("CLOUD_CONNECTOR__DEAD_LETTERS__MAX_TOTAL", LETTERS_IN_ALL)
            .env(
                "CLOUD_CONNECTOR__BROKER__RECONNECT_GRACE",
                format!("{}s", RECONNECT_GRACE.as_secs()),
            );
        command
    };
    let url = format!("http://{http}");
    let process = Process::new("connector", url.clone(), folder, command);
    SetUp {
        kind: Kind::Embedded,
        processes: vec![Arc::new(Mutex::new(process))],
        services: None,
        mqtt,
        api: url,
        folder: folder.to_owned(),
    }
}

async fn distributed(folder: &Path, tenants: String) -> SetUp {
    let (mosquitto, postgres, kafka) =
        tokio::join!(Service::mosquitto(), Service::postgres(), Service::kafka());
    let mqtt = format!("127.0.0.1:{}", mosquitto.port);
    let fleet = Fleet::with(mosquitto, Some(postgres), Some(kafka)).await;
    let fleet = fleet
        .set("tenant.static_file", tenants)
        .set("dead_letters.max_total", LETTERS_IN_ALL);
    let fleet = Arc::new(fleet);
    let mut api = String::new();
    let mut processes = Vec::new();
    for (nth, role) in ROLES.iter().enumerate() {
        let listen = address();
        let url = format!("http://{listen}");
        if *role == "api" {
            url.clone_into(&mut api);
        }
        let settings = fleet.clone();
        let command = move || {
            let mut command = settings.program();
            command.args(["run", "--role", role, "--http", &listen]);
            command
        };
        let name = format!("{role}-{nth}");
        let process = Process::new(&name, url, folder, command);
        processes.push(Arc::new(Mutex::new(process)));
    }
    SetUp {
        kind: Kind::Distributed,
        processes,
        services: Some(fleet),
        mqtt,
        api,
        folder: folder.to_owned(),
    }
}

fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}

fn tenants_file(fleet: &[Profile]) -> String {
    let mut tenants = Map::new();
    for manner in fleet {
        let says = match manner.tenant {
            Tenant::Default => continue,
            Tenant::Nobody => json!({"error": "revoked"}),
            Tenant::Other => {
                let (org, account) = manner.tenant.names();
                json!({"orgId": org, "accountId": account})
            }
        };
        tenants.insert(manner.name.clone(), says);
    }
    serde_json::Value::from(tenants).to_string()
}
