//! The barest server that does the same: one SQL query, and for a message one acknowledged publish.
//! Nobody proves who it is, nothing is checked, nothing is logged or counted. A process of its own, as
//! ours is.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bytes::Bytes;
use cloud_connector::mqtt::{MqttEvent, MqttHandle, Options, Session, connect};
use serde_json::{Value, json};
use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::{PgPool, Row as _};

use super::ORG;
use super::support::{Services, config, variables};

/// As many as ours has.
const CONNECTIONS: u32 = 10;

/// The query of ours, to the letter.
const FIND: &str = "SELECT client_id, org_id, COALESCE(account, '') AS account, \
     dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers, \
     COALESCE(tags, 'null') AS tags, client_name, client_version, message_id, message_sent \
     FROM connections WHERE client_id = $1 AND org_id = $2";

struct Bare {
    pool: PgPool,
    publisher: MqttHandle,
}

pub async fn serve(services: &Services, database: &str) -> Result<()> {
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(&services.database_url(database))
        .await?;
    let settings = config(variables(&[
        (
            "mqtt.url",
            &format!("mqtt://127.0.0.1:{}", services.mosquitto),
        ),
        ("mqtt.username", "cloud-connector"),
        ("mqtt.password", "cc-secret"),
    ]))?;
    let id = format!("bench-bare-{}", std::process::id());
    let options = Options::from_config(&settings.mqtt, &id, Session::Clean);
    let (publisher, mut link) = connect(&options)?;
    tokio::spawn(async move { while !matches!(link.next().await, MqttEvent::Lost(_)) {} });
    let router = Router::new()
        .route("/status/{client}", get(status))
        .route("/message/{client}", post(message))
        .with_state(Arc::new(Bare { pool, publisher }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}

type Answer = Result<(StatusCode, [(header::HeaderName, &'static str); 1], Vec<u8>), Failed>;

async fn status(State(bare): State<Arc<Bare>>, Path(client): Path<String>) -> Answer {
    let row = bare.find(&client).await?;
    let body = json!({
        "status": "connected",
        "account": row.try_get::<&str, _>("account")?,
        "org_id": row.try_get::<&str, _>("org_id")?,
        "client_id": row.try_get::<&str, _>("client_id")?,
        "canonical_facts": row.try_get::<Value, _>("canonical_facts")?,
        "dispatchers": row.try_get::<Value, _>("dispatchers")?,
        "tags": row.try_get::<Value, _>("tags")?,
    });
    answer(StatusCode::OK, &body)
}

async fn message(State(bare): State<Arc<Bare>>, Path(client): Path<String>, body: Bytes) -> Answer {
    let wanted: Value = serde_json::from_slice(&body)?;
    let row = bare.find(&client).await?;
    let id = uuid::Uuid::new_v4();
    let message = json!({
        "type": "data", "message_id": id, "response_to": "", "version": 1,
        "sent": cloud_connector::domain::Timestamp::now().to_string(),
        "directive": wanted["directive"], "metadata": wanted["metadata"],
        "content": wanted["payload"],
    });
    let prefix: &str = row.try_get("topic_prefix")?;
    let published = bare.publisher.publish(
        format!("{prefix}/{client}/data/in"),
        serde_json::to_vec(&message)?,
    );
    let within = Duration::from_secs(2);
    tokio::time::timeout(within, published).await??;
    answer(StatusCode::CREATED, &json!({"id": id}))
}

impl Bare {
    async fn find(&self, client: &str) -> Result<PgRow> {
        let row = sqlx::query(FIND).bind(client).bind(ORG);
        row.fetch_optional(&self.pool).await?.context("nobody")
    }
}

fn answer(status: StatusCode, body: &Value) -> Answer {
    let kind = [(header::CONTENT_TYPE, "application/json; charset=UTF-8")];
    Ok((status, kind, serde_json::to_vec(body)?))
}

struct Failed(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{:#}", self.0)).into_response()
    }
}
