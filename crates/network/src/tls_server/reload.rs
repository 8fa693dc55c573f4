//! A TLS server configuration that is reloaded when the certificate files change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::ServerConfig;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use super::{TlsError, metrics};
use service::TaskGroup;

type LoadConfig = Box<dyn Fn() -> Result<ServerConfig, TlsError> + Send + Sync>;

/// The TLS configuration of a listener. New connections use the most recently loaded version.
pub struct ServerTls {
    /// Name of the listener in logs and metrics: `mqtt` or `http`.
    listener_name: &'static str,
    certificate_files: Vec<PathBuf>,
    load_config: LoadConfig,
    current_config: RwLock<Arc<ServerConfig>>,
}

impl ServerTls {
    /// Loads the configuration. `load_config` reads `certificate_files`, and is called again when
    /// one of these files changes.
    ///
    /// # Errors
    /// When a file cannot be used. The error contains the name of the setting.
    pub fn new(
        listener_name: &'static str,
        certificate_files: Vec<PathBuf>,
        load_config: impl Fn() -> Result<ServerConfig, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let current_config = RwLock::new(Arc::new(load_config()?));
        Ok(Self {
            listener_name,
            certificate_files,
            load_config: Box::new(load_config),
            current_config,
        })
    }

    /// Returns an acceptor with the current configuration.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current_config.read().clone())
    }

    /// Loads the configuration again. If that fails, the current configuration stays in use.
    fn reload(&self) {
        match (self.load_config)() {
            Ok(config) => {
                *self.current_config.write() = Arc::new(config);
                metrics::count_certificate_reload(self.listener_name, Ok(()));
            }
            Err(error) => metrics::count_certificate_reload(self.listener_name, Err(&error)),
        }
    }

    /// Returns the modification time and the size of each certificate file. A file that cannot be
    /// read has the entry `None`.
    fn file_versions(&self) -> Vec<Option<(SystemTime, u64)>> {
        let file_version = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        self.certificate_files.iter().map(file_version).collect()
    }
}

/// Reloads the configuration on SIGHUP, and when a file has changed. Checks the files once per
/// `interval`. Returns when `tasks` is cancelled.
pub async fn reload_on_change(tls: Arc<ServerTls>, interval: Duration, tasks: TaskGroup) {
    let mut hangup = signal(SignalKind::hangup())
        .inspect_err(|error| {
            tracing::warn!(
                %error,
                "cannot install a SIGHUP handler; certificates are reloaded only when a file changes"
            );
        })
        .ok();
    let mut versions = tls.file_versions();
    loop {
        let is_reload_requested = tokio::select! {
            () = wait_for_signal(hangup.as_mut()) => true,
            () = tokio::time::sleep(interval) => false,
            () = tasks.cancelled() => return,
        };
        let current_versions = tls.file_versions();
        if is_reload_requested || current_versions != versions {
            versions = current_versions;
            tls.reload();
        }
    }
}

/// Waits for the signal. Waits forever if there is no handler for the signal.
async fn wait_for_signal(handler: Option<&mut Signal>) {
    match handler {
        Some(handler) => {
            handler.recv().await;
        }
        None => std::future::pending().await,
    }
}
