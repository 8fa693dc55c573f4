//! One connector process that can be killed, paused, stopped and started again on the same port.
//! The output of the process is appended to a log file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use test_support::ClockOffset;
use test_support::connector::send_signal;

/// Time limit for a start or an orderly stop. A correct connector never reaches this limit.
const START_STOP_TIMEOUT: Duration = Duration::from_mins(3);

pub struct Process {
    /// Name of the process, for error messages and for the name of the log file.
    pub process_name: String,
    /// Creates the command that starts the process.
    create_command: Box<dyn Fn() -> Command + Send + Sync>,
    log_file: PathBuf,
    /// Base URL of the HTTP listener.
    pub http_url: String,
    http_client: reqwest::Client,
    child: Option<Child>,
    /// The clock that the process gets at its next start.
    pub clock_offset: ClockOffset,
}

impl Process {
    pub fn new(
        process_name: &str,
        http_url: String,
        log_folder: &Path,
        create_command: impl Fn() -> Command + Send + Sync + 'static,
    ) -> Self {
        Self {
            process_name: process_name.to_owned(),
            create_command: Box::new(create_command),
            log_file: log_folder.join(format!("{process_name}.log")),
            http_url,
            http_client: test_support::http_client(),
            child: None,
            clock_offset: ClockOffset::NONE,
        }
    }

    /// Starts the process, and waits until the process is ready.
    pub async fn start(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log_file);
        let stderr = log.map_err(|error| error.to_string())?;
        let stdout = stderr.try_clone().map_err(|error| error.to_string())?;
        let mut command = (self.create_command)();
        self.clock_offset.apply_to(&mut command);
        command
            .stdout(Stdio::from(stdout))
            .stderr(Stdio::from(stderr));
        let child = command.spawn().map_err(|error| error.to_string())?;
        self.child = Some(child);
        while !self.is_ready().await {
            self.check_running()?;
            if start.elapsed() > START_STOP_TIMEOUT {
                let (name, seconds) = (&self.process_name, start.elapsed().as_secs());
                return Err(format!("{name} is not ready {seconds} s after its start"));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub async fn is_ready(&self) -> bool {
        let request = self.http_client.get(format!("{}/readiness", self.http_url));
        let response = request.timeout(Duration::from_secs(5)).send().await;
        response.is_ok_and(|response| response.status() == 200)
    }

    /// Returns an error if the process exited although the test did not stop the process.
    pub fn check_running(&mut self) -> Result<(), String> {
        let child = self.child.as_mut().expect("the process was started");
        match child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!(
                "{} exited unexpectedly: {status}",
                self.process_name
            )),
            Err(error) => Err(format!("{}: {error}", self.process_name)),
        }
    }

    fn pid(&mut self) -> Result<i32, String> {
        self.check_running()?;
        let pid = self.child.as_ref().and_then(Child::id);
        Ok(i32::try_from(pid.expect("the process is running")).expect("process ids fit into i32"))
    }

    pub async fn kill(&mut self) -> Result<(), String> {
        self.check_running()?;
        let child = self.child.as_mut().expect("the process was started");
        child.kill().await.map_err(|error| error.to_string())
    }

    pub async fn pause(&mut self, duration: Duration) -> Result<(), String> {
        let pid = self.pid()?;
        send_signal(pid, "STOP");
        sleep(duration).await;
        send_signal(pid, "CONT");
        Ok(())
    }

    /// Sends SIGTERM and waits for a successful exit.
    pub async fn stop(&mut self) -> Result<(), String> {
        send_signal(self.pid()?, "TERM");
        let child = self.child.as_mut().expect("the process was started");
        match timeout(START_STOP_TIMEOUT, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("{} stopped with {status}", self.process_name)),
            Ok(Err(error)) => Err(format!("{}: {error}", self.process_name)),
            Err(_) => Err(format!(
                "{} did not stop within {START_STOP_TIMEOUT:?}",
                self.process_name
            )),
        }
    }
}
