//! Our program as a process of its own, and what it takes.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::root;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cloud-connector");
const PATIENCE: Duration = Duration::from_mins(1);

/// Killed when dropped.
pub struct Process {
    child: Child,
    pub http: String,
    /// The embedded broker, if there is one.
    pub mqtt: String,
}

fn command(variables: &[(String, String)]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs a command to its end, which must be a good one; returns what it said.
pub async fn run(args: &[&str], variables: &[(String, String)]) -> Result<String> {
    let done = command(variables).args(args).output().await?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    ensure!(
        done.status.success(),
        "{args:?}: {said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(said)
}

impl Process {
    /// Returns when it has greeted: it is there, whatever else is.
    pub async fn start(args: &[&str], variables: &[(String, String)]) -> Result<Self> {
        let log = root().join("target/bench/processes.log");
        std::fs::create_dir_all(root().join("target/bench"))?;
        let stderr = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)?;
        let mut child = command(variables)
            .arg("run")
            .args(args)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .context(PROGRAM)?;
        let stdout = child.stdout.take().context("no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let (mut http, mut mqtt) = (String::new(), String::new());
        let greeted = tokio::time::timeout(PATIENCE, async {
            while let Some(line) = lines.next_line().await? {
                let mut words = line.split_whitespace();
                match (words.next(), words.next()) {
                    (Some("MQTT"), Some(address)) if mqtt.is_empty() => {
                        address.clone_into(&mut mqtt);
                    }
                    (Some("Ctrl-C"), _) => return Ok(()),
                    _ => {}
                }
                if let Some((_, rest)) = line.split_once("http://")
                    && http.is_empty()
                {
                    let address = rest.split('/').next().unwrap_or_default();
                    http = format!("http://{address}");
                }
            }
            bail!("{args:?} did not start; see {}", log.display())
        });
        greeted.await.context("no greeting")??;
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, http, mqtt })
    }

    /// The most memory that it has held so far, in MiB.
    pub fn most_memory(&self) -> Result<f64> {
        self.memory("VmHWM:")
    }

    /// The memory that it holds, in MiB.
    pub fn held_memory(&self) -> Result<f64> {
        self.memory("VmRSS:")
    }

    fn memory(&self, name: &str) -> Result<f64> {
        let pid = self.child.id().context("it has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.context("no such line")?.parse::<f64>()? / 1024.0)
    }

    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Ends it as an operator would, so that it leaves its session and its group in order.
    pub async fn stop(mut self) -> Result<()> {
        let pid = self.child.id().context("it has ended")?;
        let mut tell = std::process::Command::new("kill");
        let told = tell.arg(pid.to_string()).status()?;
        ensure!(told.success(), "cannot tell it to stop");
        tokio::time::timeout(PATIENCE, self.child.wait()).await??;
        Ok(())
    }
}

/// Asks again and again until there is an answer.
pub async fn eventually<T, F>(what: &str, pause: Duration, mut ask: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let until = Instant::now() + 5 * PATIENCE;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        ensure!(Instant::now() < until, "in vain waited for {what}");
        tokio::time::sleep(pause).await;
    }
}
