//! Some faults change the network or mount a file system. Therefore the whole test runs in its own
//! network namespace and its own mount namespace, if it may create them. All changes disappear when
//! the test ends.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::faults::FaultKind;
use crate::options::{IN_NAMESPACES_OPTION, Options};

/// The faults that are possible only in the namespaces.
const FAULTS_IN_NAMESPACES: [FaultKind; 2] = [FaultKind::PostgresHalfOpen, FaultKind::DiskFull];

/// Replaces this process by a process in new namespaces that runs the same test. Returns only if
/// this process is in the namespaces already, if no enabled fault needs the namespaces, or if it
/// cannot create them. Removes impossible faults from the options, and prints each of them with the
/// reason.
pub fn enter(options: &mut Options) {
    let needs_namespaces = FAULTS_IN_NAMESPACES
        .iter()
        .any(|kind| options.fault_kinds.contains(kind));
    if !needs_namespaces {
        return;
    }
    if options.is_in_namespaces {
        if let Err(reason) = check_command("ip", &["link", "set", "lo", "up"]) {
            // Without the loopback interface, no process could reach another one.
            panic!("cannot enable the loopback interface: {reason}");
        }
        if let Err(reason) = check_command("nft", &["list", "ruleset"]) {
            leave_out(options, FaultKind::PostgresHalfOpen, &reason);
        }
        return;
    }
    let reason = match can_create_namespaces() {
        Ok(()) => {
            let program = std::env::current_exe().expect("the path of this program");
            let error = Command::new("unshare")
                .args(["--net", "--mount", "--"])
                .arg(program)
                .args(std::env::args().skip(1))
                .arg(IN_NAMESPACES_OPTION)
                .exec();
            error.to_string()
        }
        Err(reason) => reason,
    };
    for kind in FAULTS_IN_NAMESPACES {
        leave_out(options, kind, &reason);
    }
}

/// Checks everything that the process needs in the namespaces, because it cannot return from there.
fn can_create_namespaces() -> Result<(), String> {
    check_command("ip", &["-V"])?;
    let args = ["--net", "--mount", "--", "ip", "link", "set", "lo", "up"];
    check_command("unshare", &args)
}

fn leave_out(options: &mut Options, kind: FaultKind, reason: &str) {
    if options.fault_kinds.remove(&kind) {
        println!("chaos: leaving out {kind}: {reason}");
    }
}

/// Runs a command. If it fails, returns its error output.
fn check_command(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}; run `dev/prepare test`"))?;
    if output.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let error = error.lines().next().unwrap_or("no error message");
    Err(format!("{error}; run the test as root"))
}
