//! Runs the connector as a separate process, and reads the memory of the process.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::repository_root;

/// Path of the `cloud-connector` binary.
pub const CONNECTOR_PROGRAM: &str = env!("CARGO_BIN_EXE_cloud-connector");

/// Maximum time until a process has printed its startup banner.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum time between SIGTERM and the exit of a process.
const STOP_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum time for which [`eventually`] polls.
const POLL_TIMEOUT: Duration = Duration::from_mins(5);
const READINESS_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Unit of the CPU times in `/proc`, on all common Linux systems.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

/// A running connector process. Dropping this value kills the process.
pub struct ConnectorProcess {
    child: Child,
    /// URL of the HTTP server without a path, such as `http://127.0.0.1:8080`.
    pub http_url: String,
    /// Address of the embedded broker. Empty if the connector has no embedded broker.
    pub mqtt_address: String,
}

fn connector_command(env_vars: &[(String, String)]) -> Command {
    let mut command = Command::new(CONNECTOR_PROGRAM);
    command
        .envs(env_vars.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs a command of the connector, and waits until the process exits. Fails if the exit code is
/// not zero.
pub async fn run_command(args: &[&str], env_vars: &[(String, String)]) -> Result<()> {
    let output = connector_command(env_vars).args(args).output().await?;
    ensure!(
        output.status.success(),
        "{args:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

impl ConnectorProcess {
    /// Starts `cloud-connector run` and waits until the process has printed its startup banner. The
    /// connector may not be ready yet.
    pub async fn start(args: &[&str], env_vars: &[(String, String)]) -> Result<Self> {
        let log_path = repository_root().join("target/bench/processes.log");
        std::fs::create_dir_all(repository_root().join("target/bench"))?;
        let stderr = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log_path)?;
        let mut child = connector_command(env_vars)
            .arg("run")
            .args(args)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .context(CONNECTOR_PROGRAM)?;
        let stdout = child.stdout.take().context("stdout is not piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let (mut http_url, mut mqtt_address) = (String::new(), String::new());
        let read_banner = tokio::time::timeout(START_TIMEOUT, async {
            while let Some(line) = lines.next_line().await? {
                let mut words = line.split_whitespace();
                match (words.next(), words.next()) {
                    (Some("MQTT"), Some(address)) if mqtt_address.is_empty() => {
                        address.clone_into(&mut mqtt_address);
                    }
                    // The last line of the banner starts with `Ctrl-C`.
                    (Some("Ctrl-C"), _) => return Ok(()),
                    _ => {}
                }
                if let Some((_, rest)) = line.split_once("http://")
                    && http_url.is_empty()
                {
                    let address = rest.split('/').next().unwrap_or_default();
                    http_url = format!("http://{address}");
                }
            }
            bail!("{args:?} did not start; see {}", log_path.display())
        });
        read_banner
            .await
            .context("the connector did not print its startup banner in time")??;
        // Continue to read stdout, because the connector would block if the pipe were full.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self {
            child,
            http_url,
            mqtt_address,
        })
    }

    /// Waits until the readiness endpoint returns success.
    pub async fn wait_until_ready(&self) -> Result<()> {
        let url = format!("{}/readiness", self.http_url);
        eventually("readiness", READINESS_POLL_INTERVAL, || async {
            let response = reqwest::get(&url).await?;
            Ok(response.status().is_success().then_some(()))
        })
        .await
    }

    /// Returns the peak resident memory since the start of the process, in MiB.
    pub fn peak_memory_mib(&self) -> Result<f64> {
        self.read_memory_field_mib("VmHWM:")
    }

    /// Returns the current resident memory of the process, in MiB.
    pub fn current_memory_mib(&self) -> Result<f64> {
        self.read_memory_field_mib("VmRSS:")
    }

    fn read_memory_field_mib(&self, field: &str) -> Result<f64> {
        memory_mib(self.pid()?, field)
    }

    /// Returns the CPU time of the process since its start, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()?))?;
        // The name of the program, in parentheses, is the second field and can contain spaces.
        let (_, fields) = stat.rsplit_once(')').context("/proc has no process name")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let [user_ticks, system_ticks] = [11, 12].map(|index| fields.get(index).copied());
        let (user_ticks, system_ticks) = user_ticks
            .zip(system_ticks)
            .context("/proc has no CPU times")?;
        let ticks = user_ticks.parse::<u64>()? + system_ticks.parse::<u64>()?;
        Ok(ticks as f64 / CLOCK_TICKS_PER_SECOND)
    }

    fn pid(&self) -> Result<u32> {
        self.child.id().context("the connector has exited")
    }

    /// Sends SIGKILL and waits until the process exits.
    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Sends SIGTERM and waits until the process exits. The connector disconnects from the broker
    /// and leaves its consumer group before it exits.
    pub async fn stop(mut self) -> Result<()> {
        let pid = self.pid()?.to_string();
        let status = std::process::Command::new("kill").arg(pid).status()?;
        ensure!(
            status.success(),
            "failed to send SIGTERM to the connector: {status}"
        );
        tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await??;
        Ok(())
    }
}

/// Reads a memory field of `/proc/<pid>/status`. Returns the value in MiB.
pub fn memory_mib(pid: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib = kib.with_context(|| format!("/proc has no {field}"))?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// Calls `poll` until it returns `Some`, and returns the value. After [`POLL_TIMEOUT`], fails with
/// an error that contains `description`.
pub async fn eventually<T, Fut>(
    description: &str,
    poll_interval: Duration,
    mut poll: impl FnMut() -> Fut,
) -> Result<T>
where
    Fut: Future<Output = Result<Option<T>>>,
{
    let deadline = Instant::now() + POLL_TIMEOUT;
    loop {
        if let Some(value) = poll().await? {
            return Ok(value);
        }
        ensure!(
            Instant::now() < deadline,
            "timed out waiting for: {description}"
        );
        tokio::time::sleep(poll_interval).await;
    }
}
