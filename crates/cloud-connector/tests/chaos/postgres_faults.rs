//! Faults of PostgreSQL that close no connection: its processes do not run, or its packets are lost.

use std::io::Write as _;
use std::process::{Command, Stdio};

use test_support::services::Service;

/// Stops all processes of the PostgreSQL server until the value is dropped.
pub struct FrozenPostgres {
    pids: Vec<String>,
}

impl FrozenPostgres {
    pub fn freeze(postgres: &Service) -> Result<Self, String> {
        let pid_file = postgres.file_path("pid");
        let main_pid = std::fs::read_to_string(pid_file).map_err(|error| error.to_string())?;
        let main_pid = main_pid.trim().to_owned();
        // The main process is stopped first, so it starts no other child processes.
        send_signal("STOP", std::slice::from_ref(&main_pid));
        let children = format!("/proc/{main_pid}/task/{main_pid}/children");
        let children = std::fs::read_to_string(children).map_err(|error| error.to_string());
        let mut frozen = Self {
            pids: vec![main_pid],
        };
        let children: Vec<String> = children?.split_whitespace().map(str::to_owned).collect();
        send_signal("STOP", &children);
        frozen.pids.extend(children);
        Ok(frozen)
    }
}

impl Drop for FrozenPostgres {
    fn drop(&mut self) {
        send_signal("CONT", &self.pids);
    }
}

/// Sends a signal to the processes. A process that has exited meanwhile is ignored.
fn send_signal(signal_name: &str, pids: &[String]) {
    let _ = Command::new("kill")
        .arg(format!("-{signal_name}"))
        .args(pids)
        .stderr(Stdio::null())
        .status();
}

/// Drops all packets from and to a port of this network namespace until the value is dropped.
pub struct DroppedPackets {
    table_name: String,
}

impl DroppedPackets {
    pub fn drop_packets(port: u16) -> Result<Self, String> {
        let table_name = format!("drop_{port}");
        // The packets are dropped when they arrive. If they were dropped before they are sent, the
        // sender would get an error.
        let rules = format!(
            "table inet {table_name} {{
                chain input {{
                    type filter hook input priority 0;
                    tcp sport {port} drop
                    tcp dport {port} drop
                }}
            }}\n"
        );
        run_nft(&rules)?;
        Ok(Self { table_name })
    }
}

impl Drop for DroppedPackets {
    fn drop(&mut self) {
        if let Err(error) = run_nft(&format!("delete table inet {}\n", self.table_name)) {
            println!("chaos: cannot delete the firewall rules: {error}");
        }
    }
}

fn run_nft(commands: &str) -> Result<(), String> {
    let describe = |error: std::io::Error| format!("nft: {error}");
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .map_err(describe)?;
    let mut stdin = nft.stdin.take().expect("stdin is a pipe");
    stdin.write_all(commands.as_bytes()).map_err(describe)?;
    drop(stdin);
    let status = nft.wait().map_err(describe)?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("nft failed with {status}: {commands}"))
    }
}
