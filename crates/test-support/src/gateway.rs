//! A fake of the certificate gateway. The real gateway is an external service that returns the
//! tenant of a client.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use serde_json::json;

/// Reply of the gateway to a tenant lookup.
#[derive(Debug, Clone)]
pub enum GatewayReply {
    /// The gateway responds with an identity that contains this organization id.
    Found(&'static str),
    /// The gateway responds with its "unauthorized" error, which means that the client has no
    /// tenant.
    NotFound,
    /// The response is an HTML page with this HTTP status. A proxy in front of the gateway may send
    /// such a page.
    HtmlPage(u16),
    /// The gateway accepts the request and never responds.
    NoReply,
    /// The gateway responds with HTTP status 503.
    Overloaded,
}

#[derive(Default)]
struct GatewayState {
    replies_by_client_id: HashMap<String, GatewayReply>,
    default_reply: Option<GatewayReply>,
    requested_client_ids: Vec<String>,
}

/// A fake gateway that listens on a local port. Dropping the value stops the gateway.
pub struct FakeGateway {
    pub url: String,
    state: Arc<Mutex<GatewayState>>,
    server_task: tokio::task::JoinHandle<()>,
}

impl FakeGateway {
    pub async fn start(default_reply: GatewayReply) -> Self {
        let state = Arc::new(Mutex::new(GatewayState {
            default_reply: Some(default_reply),
            ..GatewayState::default()
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/lookup", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/lookup", axum::routing::get(handle_lookup))
            .with_state(state.clone());
        let server_task = tokio::spawn(async move {
            axum::serve(listener, router).await.unwrap();
        });
        Self {
            url,
            state,
            server_task,
        }
    }

    /// Sets the reply for one client.
    pub fn set_reply(&self, client_id: &str, reply: GatewayReply) {
        self.state
            .lock()
            .replies_by_client_id
            .insert(client_id.to_owned(), reply);
    }

    /// Sets the reply for all clients for which `set_reply` was not called.
    pub fn set_default_reply(&self, reply: GatewayReply) {
        self.state.lock().default_reply = Some(reply);
    }

    /// Returns the client ids of all lookups so far, in the order of the lookups.
    pub fn requested_client_ids(&self) -> Vec<String> {
        self.state.lock().requested_client_ids.clone()
    }
}

impl Drop for FakeGateway {
    fn drop(&mut self) {
        self.server_task.abort();
    }
}

async fn handle_lookup(
    State(state): State<Arc<Mutex<GatewayState>>>,
    headers: HeaderMap,
) -> Response {
    let common_name = headers["x-rh-certauth-cn"].to_str().unwrap_or_default();
    let client_id = common_name.trim_start_matches("/CN=").to_owned();
    let reply = {
        let mut state = state.lock();
        state.requested_client_ids.push(client_id.clone());
        let reply = state.replies_by_client_id.get(&client_id);
        let reply = reply.or(state.default_reply.as_ref()).cloned();
        reply.unwrap_or(GatewayReply::NotFound)
    };
    match reply {
        GatewayReply::Found(org_id) => {
            let identity = json!({"identity": {"type": "System", "account_number": "42",
                "internal": {"org_id": org_id}, "system": {"cn": client_id},
                "unknown": {"kept": true}}});
            let identity = BASE64_STANDARD.encode(identity.to_string());
            response(200, &json!({"x-rh-identity": identity}).to_string())
        }
        GatewayReply::NotFound => {
            let error = json!({"meta": {"response_by": "gateway"}, "status": 401, "detail": "no"});
            response(401, &json!({"errors": [error]}).to_string())
        }
        GatewayReply::HtmlPage(status) => response(status, "<html>Sign in to go on</html>"),
        GatewayReply::Overloaded => response(503, "busy"),
        GatewayReply::NoReply => std::future::pending().await,
    }
}

fn response(status: u16, body: &str) -> Response {
    (StatusCode::from_u16(status).unwrap(), body.to_owned()).into_response()
}
