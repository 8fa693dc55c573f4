//! Baseline server for the REST API. It runs one SQL query per request. For a message, it also
//! publishes to MQTT and waits for the PUBACK. It has no authentication, no validation, no logs and
//! no metrics. Like the connector, it runs in a separate process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bytes::Bytes;
use mqtt::{ConnectOptions, MqttEvent, MqttHandle, SessionKind, connect};
use serde_json::{Value, json};
use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::{PgPool, Row as _};

use super::ORG_ID;
use super::support::{Services, env_vars, load_config};

/// Maximum size of the connection pool. The value is the default of the connector's setting
/// `postgres.max_connections`.
const MAX_DATABASE_CONNECTIONS: u32 = 10;

/// Maximum time to wait for the PUBACK of a message.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The query with which the connector finds a client of an organization.
const FIND_CONNECTION_SQL: &str = "SELECT client_id, org_id, COALESCE(account, '') AS account, \
     dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers, \
     COALESCE(tags, 'null') AS tags, client_name, client_version, message_id, message_sent \
     FROM connections WHERE client_id = $1 AND org_id = $2";

/// State that the request handlers share.
struct BaselineState {
    pool: PgPool,
    mqtt: MqttHandle,
}

/// Runs the baseline server on a free port, and prints the server's URL to stdout.
pub async fn serve(services: &Services, database: &str) -> Result<()> {
    let pool = PgPoolOptions::new()
        .max_connections(MAX_DATABASE_CONNECTIONS)
        // Like the connector, do not ping a connection before every query. sqlx still pings each
        // connection when it is returned to the pool.
        .test_before_acquire(false)
        .connect(&services.database_url(database))
        .await?;
    let config = load_config(env_vars(&[
        (
            "mqtt.url",
            &format!("mqtt://127.0.0.1:{}", services.mosquitto_port),
        ),
        ("mqtt.username", "cloud-connector"),
        ("mqtt.password", "cc-secret"),
    ]))?;
    let mqtt_client_id = format!("bench-baseline-{}", std::process::id());
    let options = ConnectOptions::from_config(&config.mqtt, &mqtt_client_id, SessionKind::Clean);
    let (mqtt, mut event_loop) = connect(&options)?;
    // The MQTT client sends and receives only while its event loop is polled.
    let poll_event_loop =
        async move { while !matches!(event_loop.next().await, MqttEvent::Disconnected(_)) {} };
    tokio::spawn(poll_event_loop);
    let router = Router::new()
        .route("/status/{client_id}", get(get_status))
        .route("/message/{client_id}", post(post_message))
        .with_state(Arc::new(BaselineState { pool, mqtt }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, router).await?;
    Ok(())
}

type JsonResponse =
    Result<(StatusCode, [(header::HeaderName, &'static str); 1], Vec<u8>), InternalError>;

async fn get_status(
    State(baseline): State<Arc<BaselineState>>,
    Path(client_id): Path<String>,
) -> JsonResponse {
    let row = baseline.find_connection(&client_id).await?;
    let body = json!({
        "status": "connected",
        "account": row.try_get::<&str, _>("account")?,
        "org_id": row.try_get::<&str, _>("org_id")?,
        "client_id": row.try_get::<&str, _>("client_id")?,
        "canonical_facts": row.try_get::<Value, _>("canonical_facts")?,
        "dispatchers": row.try_get::<Value, _>("dispatchers")?,
        "tags": row.try_get::<Value, _>("tags")?,
    });
    json_response(StatusCode::OK, &body)
}

async fn post_message(
    State(baseline): State<Arc<BaselineState>>,
    Path(client_id): Path<String>,
    body: Bytes,
) -> JsonResponse {
    let request: Value = serde_json::from_slice(&body)?;
    let row = baseline.find_connection(&client_id).await?;
    let message_id = uuid::Uuid::new_v4();
    let message = json!({
        "type": "data", "message_id": message_id, "response_to": "", "version": 1,
        "sent": domain::Timestamp::now().to_string(),
        "directive": request["directive"], "metadata": request["metadata"],
        "content": request["payload"],
    });
    let topic_prefix: &str = row.try_get("topic_prefix")?;
    let publish = baseline.mqtt.publish(
        format!("{topic_prefix}/{client_id}/data/in"),
        serde_json::to_vec(&message)?,
    );
    tokio::time::timeout(PUBLISH_TIMEOUT, publish).await??;
    json_response(StatusCode::CREATED, &json!({"id": message_id}))
}

impl BaselineState {
    async fn find_connection(&self, client_id: &str) -> Result<PgRow> {
        let query = sqlx::query(FIND_CONNECTION_SQL)
            .bind(client_id)
            .bind(ORG_ID);
        let row = query.fetch_optional(&self.pool).await?;
        row.context("no such client")
    }
}

fn json_response(status: StatusCode, body: &Value) -> JsonResponse {
    let headers = [(header::CONTENT_TYPE, "application/json; charset=UTF-8")];
    Ok((status, headers, serde_json::to_vec(body)?))
}

struct InternalError(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for InternalError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for InternalError {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{:#}", self.0)).into_response()
    }
}
