//! The file in the data folder that contains the address of the running connector. Commands on the
//! same machine read it to find the REST API.
//!
//! The connector writes the file after it has bound its ports and removes it at shutdown. After a
//! crash the file remains. Therefore it contains the id of the process that wrote it.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::AppInfo;
use super::data_dir::lock_file_path;
use super::roles::Role;

const ADDRESS_FILE_NAME: &str = "address.json";

/// The address of a running connector, for commands on the same machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalAddress {
    process_id: u32,
    /// URL of the REST API, with the base path.
    pub url: String,
    /// The value of `tenant.default_org_id`. `None` if the setting is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org_id: Option<String>,
}

impl LocalAddress {
    /// Returns the address of this process. Returns `None` if the process does not serve the REST
    /// API.
    pub(super) fn of_this_process(
        info: &AppInfo,
        base_path: &str,
        default_org_id: &str,
    ) -> Option<Self> {
        if !info.roles.contains(Role::Api) {
            return None;
        }
        let scheme = if info.uses_https { "https" } else { "http" };
        let address = reachable_address(info.http_address);
        Some(Self {
            process_id: std::process::id(),
            url: format!("{scheme}://{address}{base_path}"),
            org_id: (!default_org_id.is_empty()).then(|| default_org_id.to_owned()),
        })
    }

    /// Writes the address to the data folder. Writes to a temporary file first and renames the
    /// temporary file, so that a command never reads a partial file.
    pub(super) fn write(&self, data_dir: &Path) -> std::io::Result<()> {
        let file = data_dir.join(ADDRESS_FILE_NAME);
        let temporary_file = file.with_extension("new");
        let mut output = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary_file)?;
        writeln!(output, "{}", serde_json::to_string(self)?)?;
        std::fs::rename(&temporary_file, &file)
    }

    /// Removes the address from the data folder.
    pub(super) fn remove(data_dir: &Path) -> std::io::Result<()> {
        match std::fs::remove_file(data_dir.join(ADDRESS_FILE_NAME)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads the address of the connector that runs with this data folder. Returns `None` if no
    /// connector runs, or if the file was written by an earlier process.
    ///
    /// # Errors
    /// When this user may not read the data folder.
    pub fn read(data_dir: &Path) -> std::io::Result<Option<Self>> {
        let Some(text) = read_if_exists(&data_dir.join(ADDRESS_FILE_NAME))? else {
            return Ok(None);
        };
        let Ok(address) = serde_json::from_str::<Self>(&text) else {
            return Ok(None);
        };
        // The lock file contains the id of the process that has locked the data folder last.
        let lock_owner = read_if_exists(&lock_file_path(data_dir))?;
        let lock_owner = lock_owner.and_then(|text| text.trim().parse::<u32>().ok());
        let is_current =
            lock_owner == Some(address.process_id) && is_process_running(address.process_id);
        Ok(is_current.then_some(address))
    }
}

/// Returns an address that a command on the same machine can connect to. An unspecified listen
/// address, such as `0.0.0.0`, is replaced by the loopback address.
fn reachable_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Returns the text of a file. Returns `None` if the file does not exist.
fn read_if_exists(file: &Path) -> std::io::Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a process with this id runs. Without the folder `/proc`, the answer is not known
/// and the function returns true.
fn is_process_running(process_id: u32) -> bool {
    let processes = Path::new("/proc");
    !processes.join("self").exists() || processes.join(process_id.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::DataDir;

    fn address_of(process_id: u32) -> LocalAddress {
        LocalAddress {
            process_id,
            url: "http://127.0.0.1:8080/api".to_owned(),
            org_id: Some("10000".to_owned()),
        }
    }

    #[test]
    fn the_address_of_the_running_process_is_read_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(folder.path()).unwrap();
        assert_eq!(LocalAddress::read(data_dir.path()).unwrap(), None);
        let address = address_of(std::process::id());
        address.write(data_dir.path()).unwrap();
        assert_eq!(LocalAddress::read(folder.path()).unwrap(), Some(address));
        LocalAddress::remove(folder.path()).unwrap();
        assert_eq!(LocalAddress::read(folder.path()).unwrap(), None);
        LocalAddress::remove(folder.path()).unwrap();
    }

    #[test]
    fn a_stale_or_damaged_address_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let _data_dir = DataDir::open(folder.path()).unwrap();
        // Another process has locked the data folder since.
        address_of(1).write(folder.path()).unwrap();
        assert_eq!(LocalAddress::read(folder.path()).unwrap(), None);
        std::fs::write(folder.path().join(ADDRESS_FILE_NAME), "{").unwrap();
        assert_eq!(LocalAddress::read(folder.path()).unwrap(), None);
        // The process that wrote both files has crashed. Linux never uses an id as high as this one.
        let crashed = u32::MAX - 1;
        address_of(crashed).write(folder.path()).unwrap();
        std::fs::write(lock_file_path(folder.path()), crashed.to_string()).unwrap();
        assert_eq!(LocalAddress::read(folder.path()).unwrap(), None);
    }

    #[test]
    fn an_unspecified_listen_address_becomes_the_loopback_address() {
        for (listen, expected) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:80", "[::1]:80"),
            ("192.0.2.1:1", "192.0.2.1:1"),
        ] {
            let address = reachable_address(listen.parse().unwrap());
            assert_eq!(address.to_string(), expected);
        }
    }
}
