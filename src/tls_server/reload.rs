//! A TLS server configuration that is reloaded when its files change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::ServerConfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use super::TlsError;
use crate::shutdown::TaskGroup;
use crate::telemetry::metrics;

type LoadConfig = Box<dyn Fn() -> Result<ServerConfig, TlsError> + Send + Sync>;

/// The TLS configuration of a listener. New connections use the most recently loaded version.
pub struct ServerTls {
    /// Name of the listener in logs and metrics: `mqtt` or `http`.
    listener: &'static str,
    files: Vec<PathBuf>,
    load: LoadConfig,
    current: RwLock<Arc<ServerConfig>>,
}

impl ServerTls {
    /// Loads the configuration. `load` reads `files` and is called again when one of them changes.
    ///
    /// # Errors
    /// When a file cannot be used. The error names the configuration key.
    pub fn new(
        listener: &'static str,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<ServerConfig, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(load()?));
        Ok(Self {
            listener,
            files,
            load: Box::new(load),
            current,
        })
    }

    /// Returns an acceptor with the current configuration.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.read().clone())
    }

    /// Loads the configuration again. Keeps the current one if that fails.
    fn reload(&self) {
        match (self.load)() {
            Ok(config) => {
                *self.current.write() = Arc::new(config);
                metrics::certificate_reload(self.listener, Ok(()));
            }
            Err(error) => metrics::certificate_reload(self.listener, Err(&error)),
        }
    }

    /// Returns modification time and size of each file, `None` for a file that cannot be read.
    fn file_versions(&self) -> Vec<Option<(SystemTime, u64)>> {
        let version = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        self.files.iter().map(version).collect()
    }
}

/// Reloads the configuration on SIGHUP and when a file has changed, until `tasks` is cancelled.
/// Checks the files once per `interval`.
pub async fn reload_on_change(tls: Arc<ServerTls>, interval: Duration, tasks: TaskGroup) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        tracing::warn!(
            "cannot install a SIGHUP handler; certificates are reloaded only at a restart"
        );
        return;
    };
    let mut versions = tls.file_versions();
    loop {
        let is_forced = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(interval) => false,
            () = tasks.cancelled() => return,
        };
        let current_versions = tls.file_versions();
        if is_forced || current_versions != versions {
            versions = current_versions;
            tls.reload();
        }
    }
}
