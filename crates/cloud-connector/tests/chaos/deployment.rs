//! The connector in one deployment mode, with private external services.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::data_disk::DataDisk;
use crate::faults::ServiceKind;
use crate::plan::{DeploymentMode, Profile, ROLES, TenantKind};
use crate::process::Process;
use test_support::cluster::{API_KEY, Cluster};
use test_support::connector_command;
use test_support::services::{Service, free_port};

/// Value of the setting `broker.reconnect_grace`. After a restart of the embedded broker, clients
/// that do not reconnect within this time are marked as disconnected.
const RECONNECT_GRACE: Duration = Duration::from_secs(5);
/// Value of the setting `dead_letters.max_total`. The limit is so high that the connector
/// deletes no dead letter, even in a long run.
const MAX_DEAD_LETTERS: &str = "1000000";

pub struct ChaosDeployment {
    pub mode: DeploymentMode,
    pub processes: Vec<Arc<Mutex<Process>>>,
    cluster: Option<Arc<Cluster>>,
    /// Address at which clients connect to the broker.
    pub broker_address: String,
    /// Base URL of the process that serves the API.
    pub api_url: String,
    /// Folder that contains the logs and, in embedded mode, the data folder.
    pub run_folder: PathBuf,
    /// File system of the data folder, if a fault fills it.
    pub data_disk: Option<DataDisk>,
    service_locks: ServiceLocks,
}

/// At most one fault at a time affects a service.
#[derive(Default)]
struct ServiceLocks {
    mosquitto: Mutex<()>,
    kafka: Mutex<()>,
    postgres: Mutex<()>,
}

impl ChaosDeployment {
    pub async fn start(
        mode: DeploymentMode,
        folder: &Path,
        profiles: &[Profile],
        uses_data_disk: bool,
    ) -> Result<Self, String> {
        let tenants_file = folder.join("tenants.json");
        std::fs::write(&tenants_file, tenants_json(profiles)).map_err(|error| error.to_string())?;
        let tenants_file = tenants_file.display().to_string();
        let deployment = match mode {
            DeploymentMode::Embedded => {
                let mut deployment = create_embedded(folder, tenants_file);
                if uses_data_disk {
                    deployment.data_disk = Some(DataDisk::mount(&folder.join("data"))?);
                }
                deployment
            }
            DeploymentMode::Distributed => create_distributed(folder, tenants_file).await,
        };
        let start_futures = deployment.processes.iter().map(|process| async {
            let mut process = process.lock().await;
            process.start().await
        });
        for start_result in futures::future::join_all(start_futures).await {
            start_result?;
        }
        Ok(deployment)
    }

    pub fn service(&self, kind: ServiceKind) -> &Service {
        let cluster = self.cluster.as_ref();
        let cluster = cluster.expect("only the distributed mode has services");
        let service = match kind {
            ServiceKind::Mosquitto => Some(&cluster.mosquitto),
            ServiceKind::Kafka => cluster.kafka.as_ref(),
            ServiceKind::Postgres => cluster.postgres.as_ref(),
        };
        service.expect("the services are private to this test")
    }

    /// Waits until no other fault affects the service. The fault may affect the service until the
    /// returned value is dropped.
    pub async fn lock_service(&self, kind: ServiceKind) -> MutexGuard<'_, ()> {
        let lock = match kind {
            ServiceKind::Mosquitto => &self.service_locks.mosquitto,
            ServiceKind::Kafka => &self.service_locks.kafka,
            ServiceKind::Postgres => &self.service_locks.postgres,
        };
        lock.lock().await
    }

    /// Waits until all processes are ready. Fails if a process is not ready in time or has exited.
    pub async fn wait_until_ready(&self, timeout: Duration) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        for process in &self.processes {
            let mut process = process.lock().await;
            loop {
                process.check_running()?;
                if process.is_ready().await {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(format!(
                        "{} is not ready {timeout:?} after the last fault",
                        process.process_name
                    ));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Returns how long the observed state must stay correct. In embedded mode, the startup sweep
    /// runs during this time. The sweep must mark exactly those clients as disconnected that have
    /// not reconnected.
    pub fn stable_duration(&self) -> Duration {
        match self.mode {
            DeploymentMode::Embedded => RECONNECT_GRACE + Duration::from_secs(1),
            DeploymentMode::Distributed => Duration::from_secs(3),
        }
    }

    pub fn database_file(&self) -> PathBuf {
        self.run_folder.join("data/cloud-connector.db")
    }

    /// Returns the external services. `None` in embedded mode.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_deref()
    }

    pub fn database_url(&self) -> String {
        let Some(cluster) = &self.cluster else {
            return format!("sqlite://{}", self.database_file().display());
        };
        let port = cluster.setting("postgres.port");
        let database = cluster.setting("postgres.database");
        format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable")
    }

    /// Copies the logs of the services to the folder of this run, because the original logs are
    /// deleted together with the services. Also copies the data folder if its file system is
    /// unmounted at the end.
    pub fn copy_service_logs(&self) {
        if self.data_disk.is_some() {
            let _ = std::process::Command::new("cp")
                .arg("-r")
                .arg(self.run_folder.join("data"))
                .arg(self.run_folder.join("data-copy"))
                .status();
        }
        let Some(cluster) = &self.cluster else {
            return;
        };
        let named_services = [
            ("mosquitto", Some(&cluster.mosquitto)),
            ("kafka", cluster.kafka.as_ref()),
            ("postgres", cluster.postgres.as_ref()),
        ];
        for (name, service) in named_services {
            if let Some(service) = service {
                let copy = self.run_folder.join(format!("{name}.log"));
                let _ = std::fs::copy(service.file_path("log"), copy);
            }
        }
    }
}

fn create_embedded(folder: &Path, tenants_file: String) -> ChaosDeployment {
    let (http_address, mqtt_address) = (free_address(), free_address());
    let data_dir = folder.join("data");
    let (http, mqtt) = (http_address.clone(), mqtt_address.clone());
    let command = move || {
        let mut command = connector_command();
        command
            .args(["run", "--http", &http, "--mqtt", &mqtt])
            .arg("--data-dir")
            .arg(&data_dir)
            .env("CLOUD_CONNECTOR__TENANT__STATIC_FILE", &tenants_file)
            .env("CLOUD_CONNECTOR__API__KEYS__TESTER", API_KEY)
            .env("CLOUD_CONNECTOR__DEAD_LETTERS__MAX_TOTAL", MAX_DEAD_LETTERS)
            .env(
                "CLOUD_CONNECTOR__BROKER__RECONNECT_GRACE",
                format!("{}s", RECONNECT_GRACE.as_secs()),
            );
        command
    };
    let url = format!("http://{http_address}");
    let process = Process::new("connector", url.clone(), folder, command);
    ChaosDeployment {
        mode: DeploymentMode::Embedded,
        processes: vec![Arc::new(Mutex::new(process))],
        cluster: None,
        broker_address: mqtt_address,
        api_url: url,
        run_folder: folder.to_owned(),
        data_disk: None,
        service_locks: ServiceLocks::default(),
    }
}

async fn create_distributed(folder: &Path, tenants_file: String) -> ChaosDeployment {
    let (mosquitto, postgres, kafka) = tokio::join!(
        Service::start_mosquitto(),
        Service::start_postgres(),
        Service::start_kafka()
    );
    let broker_address = format!("127.0.0.1:{}", mosquitto.port);
    let cluster = Cluster::with_services(mosquitto, Some(postgres), Some(kafka)).await;
    let cluster = cluster
        .set("tenant.static_file", tenants_file)
        // The clients of this test do not answer pings.
        .set("presence.silent_after", "0s")
        .set("dead_letters.max_total", MAX_DEAD_LETTERS);
    let cluster = Arc::new(cluster);
    let mut api_url = String::new();
    let mut processes = Vec::new();
    for (index, role) in ROLES.iter().enumerate() {
        let http_address = free_address();
        let url = format!("http://{http_address}");
        if *role == "api" {
            url.clone_into(&mut api_url);
        }
        let cluster = cluster.clone();
        let command = move || {
            let mut command = cluster.connector_command();
            command.args(["run", "--role", role, "--http", &http_address]);
            command
        };
        let name = format!("{role}-{index}");
        let process = Process::new(&name, url, folder, command);
        processes.push(Arc::new(Mutex::new(process)));
    }
    ChaosDeployment {
        mode: DeploymentMode::Distributed,
        processes,
        cluster: Some(cluster),
        broker_address,
        api_url,
        run_folder: folder.to_owned(),
        data_disk: None,
        service_locks: ServiceLocks::default(),
    }
}

fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Creates the content of `tenant.static_file`. Clients that are not in the file get the default
/// tenant.
fn tenants_json(profiles: &[Profile]) -> String {
    let mut tenants = Map::new();
    for profile in profiles {
        let tenant = match profile.tenant {
            TenantKind::Default => continue,
            TenantKind::None => json!({"error": "revoked"}),
            TenantKind::Other => {
                let (org_id, account) = profile.tenant.org_and_account();
                json!({"orgId": org_id, "accountId": account})
            }
        };
        tenants.insert(profile.client_id.clone(), tenant);
    }
    serde_json::Value::from(tenants).to_string()
}
