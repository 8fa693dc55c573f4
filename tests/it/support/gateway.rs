//! A certificate gateway that says what a test wants said. It is not ours, so it may be made up.

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

/// What it says of a client.
#[derive(Debug, Clone)]
pub enum GatewayReply {
    /// It belongs to this organisation.
    Found(&'static str),
    /// It belongs to nobody.
    NotFound,
    /// A page that is not the gateway's, with this status.
    Page(u16),
    /// Nothing, for ever.
    Nothing,
    /// It is overloaded.
    Busy,
}

#[derive(Default)]
struct Book {
    of: HashMap<String, GatewayReply>,
    of_others: Option<GatewayReply>,
    asked: Vec<String>,
}

/// A gateway that runs until it is dropped.
pub struct Gateway {
    pub url: String,
    book: Arc<Mutex<Book>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Gateway {
    pub async fn start(of_others: GatewayReply) -> Self {
        let book = Arc::new(Mutex::new(Book {
            of_others: Some(of_others),
            ..Book::default()
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/lookup", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/lookup", axum::routing::get(answer))
            .with_state(book.clone());
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.unwrap();
        });
        Self { url, book, serving }
    }

    pub fn says_of(&self, client: &str, says: GatewayReply) {
        self.book.lock().of.insert(client.to_owned(), says);
    }

    pub fn says_of_others(&self, says: GatewayReply) {
        self.book.lock().of_others = Some(says);
    }

    /// Who was asked for, in order.
    pub fn asked(&self) -> Vec<String> {
        self.book.lock().asked.clone()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(book): State<Arc<Mutex<Book>>>, headers: HeaderMap) -> Response {
    let name = headers["x-rh-certauth-cn"].to_str().unwrap_or_default();
    let name = name.trim_start_matches("/CN=").to_owned();
    let says = {
        let mut book = book.lock();
        book.asked.push(name.clone());
        let says = book.of.get(&name).or(book.of_others.as_ref()).cloned();
        says.unwrap_or(GatewayReply::NotFound)
    };
    match says {
        GatewayReply::Found(org) => {
            let identity = json!({"identity": {"type": "System", "account_number": "42",
                "internal": {"org_id": org}, "system": {"cn": name}, "unknown": {"kept": true}}});
            let named = BASE64_STANDARD.encode(identity.to_string());
            json_answer(200, &json!({"x-rh-identity": named}))
        }
        GatewayReply::NotFound => {
            let error = json!({"meta": {"response_by": "gateway"}, "status": 401, "detail": "no"});
            json_answer(401, &json!({"errors": [error]}))
        }
        GatewayReply::Page(status) => page(status, "<html>Sign in to go on</html>"),
        GatewayReply::Busy => page(503, "busy"),
        GatewayReply::Nothing => std::future::pending().await,
    }
}

fn json_answer(status: u16, body: &serde_json::Value) -> Response {
    page(status, &body.to_string())
}

fn page(status: u16, body: &str) -> Response {
    (StatusCode::from_u16(status).unwrap(), body.to_owned()).into_response()
}
