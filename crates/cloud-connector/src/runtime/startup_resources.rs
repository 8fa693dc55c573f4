//! Reads the configured files and binds the configured ports. Startup does this before it creates
//! files, so an error such as "port in use" does not leave new files.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;

use super::tenant_lookup;
use crate::config::Config;
use broker::{BrokerSettings, TlsListeners};
use network::tls_server::ServerTls;
use tenant::TenantLookup;

/// Listeners and file contents that startup needs.
pub(super) struct StartupResources {
    pub tenant_lookup: Arc<dyn TenantLookup>,
    pub listeners: Listeners,
}

/// The bound sockets of the process, with their certificates.
pub(super) struct Listeners {
    pub http: HttpListeners,
    pub mqtt: broker::Listeners,
}

/// The bound sockets of the HTTP servers.
pub(super) struct HttpListeners {
    pub main: TcpListener,
    /// The certificates of the main listener. `None` if it does not use TLS.
    pub main_tls: Option<Arc<ServerTls>>,
    /// Listener for probes and metrics only, without TLS.
    pub metrics: Option<TcpListener>,
}

/// Addresses of the bound listeners. An address is `None` if there is no such listener.
pub(super) struct BoundAddresses {
    pub http: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub mqtt: Option<SocketAddr>,
    pub mqtts: Option<SocketAddr>,
    /// WebSocket listener without TLS.
    pub ws: Option<SocketAddr>,
    /// WebSocket listener with TLS.
    pub wss: Option<SocketAddr>,
}

impl StartupResources {
    /// Reads all files and binds all ports.
    pub async fn acquire(config: &Config) -> Result<Self> {
        let tenant_lookup = tenant_lookup(config)?;
        let uses_embedded_broker = config.mqtt.url.is_none();
        let mqtt_certificates = if uses_embedded_broker && config.broker.tls.is_enabled() {
            Some(Arc::new(broker::read_tls(&config.broker.tls)?))
        } else {
            None
        };
        let main_tls = api::read_tls(&config.http.tls)?.map(Arc::new);
        let main = bind("http.listen", "--http", config.http.listen).await?;
        let metrics = match config.http.metrics_listen {
            Some(address) => {
                Some(bind("http.metrics_listen", "http.metrics_listen", address).await?)
            }
            None => None,
        };
        let mqtt = if uses_embedded_broker {
            bind_broker(&config.broker, mqtt_certificates)?
        } else {
            broker::Listeners {
                plain: None,
                websocket: None,
                tls: None,
            }
        };
        Ok(Self {
            tenant_lookup,
            listeners: Listeners {
                http: HttpListeners {
                    main,
                    main_tls,
                    metrics,
                },
                mqtt,
            },
        })
    }
}

impl Listeners {
    /// Returns the addresses of the listeners. If the configured port is 0, the address contains
    /// the port that the operating system chose.
    pub fn addresses(&self) -> std::io::Result<BoundAddresses> {
        let address =
            |listener: Option<&TcpListener>| listener.map(TcpListener::local_addr).transpose();
        let tls = self.mqtt.tls.as_ref();
        Ok(BoundAddresses {
            http: self.http.main.local_addr()?,
            metrics: address(self.http.metrics.as_ref())?,
            mqtt: address(self.mqtt.plain.as_ref())?,
            mqtts: address(tls.and_then(|tls| tls.mqtt.as_ref()))?,
            ws: address(self.mqtt.websocket.as_ref())?,
            wss: address(tls.and_then(|tls| tls.websocket.as_ref()))?,
        })
    }
}

/// Binds the listeners of the embedded broker.
fn bind_broker(
    settings: &BrokerSettings,
    certificates: Option<Arc<ServerTls>>,
) -> Result<broker::Listeners> {
    let bind = |setting_name, address: Option<SocketAddr>| {
        address
            .map(|address| broker::bind(setting_name, address))
            .transpose()
    };
    let tls = match certificates {
        Some(certificates) => Some(TlsListeners {
            mqtt: bind("broker.tls.listen", settings.tls.listen)?,
            websocket: bind("broker.tls.websocket_listen", settings.tls.websocket_listen)?,
            certificates,
        }),
        None => None,
    };
    Ok(broker::Listeners {
        plain: bind("broker.listen", settings.listen)?,
        websocket: bind("broker.websocket.listen", settings.websocket.listen)?,
        tls,
    })
}

/// Binds a listener to `address`, which is the value of the setting `setting_name`. The error
/// message recommends `flag_or_setting` for choosing another address.
async fn bind(
    setting_name: &str,
    flag_or_setting: &str,
    address: SocketAddr,
) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "{setting_name}: cannot listen on {address}; stop the process that uses the address, \
             or choose another address with {flag_or_setting}"
        )
    })
}
