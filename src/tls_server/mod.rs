//! Certificates of the servers in this process: read, checked, and read again when they change.

mod error;
mod pem;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::ServerConfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use crate::shutdown::TaskGroup;
use crate::telemetry::metrics;

pub use error::TlsError;
pub use pem::{certificates, check_certificate, check_validity, private_key, read, unusable};

type Load = Box<dyn Fn() -> Result<ServerConfig, TlsError> + Send + Sync>;

/// What new TLS connections are accepted with.
pub struct ServerTls {
    /// Whose, for the log: `broker.tls`, `http.tls`.
    section: &'static str,
    files: Vec<PathBuf>,
    load: Load,
    current: RwLock<Arc<ServerConfig>>,
}

impl ServerTls {
    /// Loads what is made of these files.
    ///
    /// # Errors
    /// When one of them cannot be used; names its setting.
    pub fn new(
        section: &'static str,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<ServerConfig, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(load()?));
        Ok(Self {
            section,
            files,
            load: Box::new(load),
            current,
        })
    }

    /// For a connection that is made now.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.read().clone())
    }

    fn reload(&self) {
        match (self.load)() {
            Ok(config) => {
                *self.current.write() = Arc::new(config);
                metrics::certificates_read(self.section, Ok(()));
            }
            Err(error) => metrics::certificates_read(self.section, Err(&error)),
        }
    }

    /// Changes when any of the files does.
    fn stamp(&self) -> Vec<Option<(SystemTime, u64)>> {
        let stamp = |path: &PathBuf| {
            let file = std::fs::metadata(path).ok()?;
            Some((file.modified().ok()?, file.len()))
        };
        self.files.iter().map(stamp).collect()
    }
}

/// Reads the files again on SIGHUP, and when they have changed.
pub async fn keep_current(tls: Arc<ServerTls>, interval: Duration, stopper: TaskGroup) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        tracing::warn!("SIGHUP cannot be watched: certificates are read again only at a restart");
        return;
    };
    let mut stamp = tls.stamp();
    loop {
        let asked_for = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(interval) => false,
            () = stopper.asked() => return,
        };
        let now = tls.stamp();
        if asked_for || now != stamp {
            stamp = now;
            tls.reload();
        }
    }
}
