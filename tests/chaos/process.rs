//! One process of ours: killed, paused, stopped, started again on the same ports. What it says goes
//! to a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::support::connector::send_signal;

/// Nobody waits it out unless something is broken.
const START_WAIT: Duration = Duration::from_mins(3);

pub struct Process {
    pub name: String,
    /// How to start it.
    command: Box<dyn Fn() -> Command + Send + Sync>,
    log: PathBuf,
    /// Where it listens for HTTP, without a path.
    pub http: String,
    client: reqwest::Client,
    child: Option<Child>,
}

impl Process {
    pub fn new(
        name: &str,
        http: String,
        folder: &Path,
        command: impl Fn() -> Command + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            command: Box::new(command),
            log: folder.join(format!("{name}.log")),
            http,
            client: crate::support::http(),
            child: None,
        }
    }

    /// Starts it, and returns how long it took to be ready.
    pub async fn start(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.map_err(|error| error.to_string())?;
        let also = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = (self.command)();
        command.stdout(Stdio::from(also)).stderr(Stdio::from(log));
        let child = command.spawn().map_err(|error| error.to_string())?;
        self.child = Some(child);
        while !self.is_ready().await {
            self.check_alive()?;
            if began.elapsed() > START_WAIT {
                let (name, waited) = (&self.name, began.elapsed().as_secs());
                return Err(format!("{name} is not ready {waited} s after its start"));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(began.elapsed())
    }

    pub async fn is_ready(&self) -> bool {
        let asked = self.client.get(format!("{}/readiness", self.http));
        let answer = asked.timeout(Duration::from_secs(5)).send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    }

    /// It ends by our hand only.
    pub fn check_alive(&mut self) -> Result<(), String> {
        let child = self.child.as_mut().expect("it was started");
        match child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} ended by itself: {status}", self.name)),
            Err(error) => Err(format!("{}: {error}", self.name)),
        }
    }

    fn pid(&mut self) -> Result<i32, String> {
        self.check_alive()?;
        let pid = self.child.as_ref().and_then(Child::id);
        Ok(i32::try_from(pid.expect("it runs")).expect("it is a process number"))
    }

    pub async fn kill(&mut self) -> Result<(), String> {
        self.check_alive()?;
        let child = self.child.as_mut().expect("it was started");
        child.kill().await.map_err(|error| error.to_string())
    }

    pub async fn pause(&mut self, length: Duration) -> Result<(), String> {
        let pid = self.pid()?;
        send_signal(pid, "STOP");
        sleep(length).await;
        send_signal(pid, "CONT");
        Ok(())
    }

    /// Asks it to end, and demands that it does so in order.
    pub async fn stop(&mut self) -> Result<(), String> {
        send_signal(self.pid()?, "TERM");
        let child = self.child.as_mut().expect("it was started");
        let ended = timeout(START_WAIT, child.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("{} stopped with {status}", self.name)),
            Ok(Err(error)) => Err(format!("{}: {error}", self.name)),
            Err(_) => Err(format!("{} does not stop", self.name)),
        }
    }
}
