//! Rejects values that have the right type but are not allowed.

use super::error::InvalidValue;
use super::model::{Api, Broker, BrokerTls, Http, Mqtt, Record};
use super::{Config, HumanDuration};

/// Minimum length of a secret. A shorter secret could be guessed.
const MIN_SECRET_CHARS: usize = 16;
const MIN_BODY_BYTES: usize = 1024;
const MIN_PACKET_BYTES: usize = 1024;
/// Maximum packet size that the MQTT specification allows.
const MAX_PACKET_BYTES: usize = 256 * 1024 * 1024;
const MAX_BATCH_SIZE: usize = 1000;

pub(super) fn validate(config: &Config) -> Result<(), InvalidValue> {
    validate_http(&config.http)?;
    validate_api_rate_limit(&config.api)?;
    validate_api_keys(&config.api)?;
    validate_topic_prefixes(&config.mqtt)?;
    validate_handshake_topics(&config.mqtt)?;
    validate_external_broker(&config.mqtt)?;
    if config.mqtt.url.is_none() {
        validate_broker(&config.broker)?;
        validate_broker_tls(&config.broker.tls)?;
    }
    validate_kafka(config)?;
    validate_record(&config.record)?;
    validate_durations(config)?;
    validate_counts(config)
}

fn validate_durations(config: &Config) -> Result<(), InvalidValue> {
    let durations: [(&'static str, HumanDuration); 12] = [
        ("http.request_timeout", config.http.request_timeout),
        ("http.tls.reload_interval", config.http.tls.reload_interval),
        ("mqtt.publish_timeout", config.mqtt.publish_timeout),
        ("broker.handshake_timeout", config.broker.handshake_timeout),
        ("broker.ack_timeout", config.broker.ack_timeout),
        (
            "broker.tls.reload_interval",
            config.broker.tls.reload_interval,
        ),
        ("kafka.session_timeout", config.kafka.session_timeout),
        ("postgres.acquire_timeout", config.postgres.acquire_timeout),
        (
            "postgres.statement_timeout",
            config.postgres.statement_timeout,
        ),
        (
            "tenant.translator_timeout",
            config.tenant.translator_timeout,
        ),
        ("updaters.interval", config.updaters.interval),
        ("shutdown.grace_period", config.shutdown.grace_period),
    ];
    match durations.iter().find(|(_, value)| value.get().is_zero()) {
        Some((setting_name, _)) => Err(InvalidValue::new(
            setting_name,
            "the duration must not be zero",
            "set a longer duration, such as \"10s\"",
        )),
        None => Ok(()),
    }
}

fn validate_counts(config: &Config) -> Result<(), InvalidValue> {
    let counts = [
        ("broker.max_connections", config.broker.max_connections),
        (
            "broker.max_connections_per_address",
            config.broker.max_connections_per_address,
        ),
        (
            "postgres.max_connections",
            config.postgres.max_connections as usize,
        ),
    ];
    match counts.iter().find(|(_, count)| *count == 0) {
        Some((setting_name, _)) => Err(InvalidValue::new(
            setting_name,
            "0 would reject all connections",
            "set it to 1 or more",
        )),
        None => Ok(()),
    }
}

fn validate_http(http: &Http) -> Result<(), InvalidValue> {
    let path = &http.base_path;
    let is_plain_path = path.starts_with('/')
        && !path.ends_with('/')
        && path
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.'));
    if !is_plain_path {
        return Err(InvalidValue::new(
            "http.base_path",
            format!("{path:?} is not a valid path"),
            "start it with / and do not end it with /, as in \"/api/cloud-connector\"",
        ));
    }
    if http.max_body_bytes < MIN_BODY_BYTES {
        return Err(InvalidValue::new(
            "http.max_body_bytes",
            format!("{} bytes are too few for a message", http.max_body_bytes),
            format!("set it to {MIN_BODY_BYTES} or more"),
        ));
    }
    let tls = &http.tls;
    let missing_and_present = match (&tls.certificate, &tls.key) {
        (Some(_), None) => Some(("http.tls.key", "http.tls.certificate")),
        (None, Some(_)) => Some(("http.tls.certificate", "http.tls.key")),
        _ => None,
    };
    if let Some((missing, present)) = missing_and_present {
        return Err(InvalidValue::new(
            missing,
            format!("it is not set, but {present} is set"),
            "set both settings for HTTPS, or neither of them for HTTP",
        ));
    }
    Ok(())
}

fn validate_api_rate_limit(api: &Api) -> Result<(), InvalidValue> {
    let limits = &api.rate_limit;
    for (rate_setting, rate, burst_setting, burst) in [
        (
            "api.rate_limit.per_key",
            limits.per_key,
            "api.rate_limit.per_key_burst",
            limits.per_key_burst,
        ),
        (
            "api.rate_limit.per_org",
            limits.per_org,
            "api.rate_limit.per_org_burst",
            limits.per_org_burst,
        ),
    ] {
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(InvalidValue::new(
                rate_setting,
                format!("{rate} is not a valid rate"),
                "set it to the requests per second, or to 0 for no limit",
            ));
        }
        if rate > 0.0 && burst == 0 {
            return Err(InvalidValue::new(
                burst_setting,
                format!("0 would reject all requests, because {rate_setting} is set"),
                "set it to 1 or more",
            ));
        }
    }
    Ok(())
}

fn validate_api_keys(api: &Api) -> Result<(), InvalidValue> {
    for (caller, key) in &api.keys {
        let invalid_key = |problem: &str, hint: &str| {
            Err(InvalidValue::new("api.keys", problem, hint).with_user_chosen_name(caller))
        };
        if key.secrets().is_empty() {
            return invalid_key("the list of secrets is empty", "add a secret");
        }
        if key.scopes().is_empty() {
            return invalid_key(
                "no scope is set, so the key would authorize nothing",
                "add \"tenant\", \"management\" or both; without scopes the key has \"tenant\"",
            );
        }
        for secret in key.secrets() {
            if secret.expose().chars().count() < MIN_SECRET_CHARS {
                return invalid_key(
                    "the secret is too short",
                    &format!(
                        "use at least {MIN_SECRET_CHARS} characters, for example from \
                         `openssl rand -hex 32`"
                    ),
                );
            }
        }
    }
    Ok(())
}

fn validate_topic_prefixes(mqtt: &Mqtt) -> Result<(), InvalidValue> {
    if mqtt.prefixes.is_empty() {
        return Err(InvalidValue::new(
            "mqtt.prefixes",
            "the list is empty, so no messages would be received",
            "add a prefix, such as [\"redhat/insights\"]",
        ));
    }
    for prefix in &mqtt.prefixes {
        let is_invalid = prefix.split('/').any(str::is_empty)
            || prefix.contains(['+', '#', '\0'])
            || prefix.starts_with('$');
        if is_invalid {
            return Err(InvalidValue::new(
                "mqtt.prefixes",
                format!("{prefix:?} is not a valid topic prefix"),
                "use topic levels separated by /, without wildcards and without a leading $, such \
                 as \"redhat/insights\"",
            ));
        }
    }
    Ok(())
}

fn validate_handshake_topics(mqtt: &Mqtt) -> Result<(), InvalidValue> {
    let mut topic_levels = vec![
        (
            "mqtt.handshake_topics.in",
            &mqtt.handshake_topics.inbound_level,
        ),
        (
            "mqtt.handshake_topics.out",
            &mqtt.handshake_topics.outbound_level,
        ),
    ];
    topic_levels.extend(
        mqtt.handshake_topics
            .status_level
            .as_ref()
            .map(|level| ("mqtt.handshake_topics.status", level)),
    );
    for (index, (setting_name, level)) in topic_levels.iter().enumerate() {
        if level.is_empty() || level.contains(['/', '+', '#', '\0']) {
            return Err(InvalidValue::new(
                setting_name,
                format!("{level:?} is not one topic level"),
                "use a text without /, + and #",
            ));
        }
        let duplicate = topic_levels[..index]
            .iter()
            .find(|(_, other)| other == level);
        if let Some((other_setting, _)) = duplicate {
            return Err(InvalidValue::new(
                setting_name,
                format!("{level:?} is also the value of {other_setting}"),
                "use a different value for each of mqtt.handshake_topics",
            ));
        }
    }
    Ok(())
}

fn validate_external_broker(mqtt: &Mqtt) -> Result<(), InvalidValue> {
    let Some(url) = &mqtt.url else {
        return Ok(());
    };
    let schemes = ["mqtt://", "mqtts://", "ws://", "wss://"];
    if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
        return Err(InvalidValue::new(
            "mqtt.url",
            format!("{url:?} is not the URL of an MQTT broker"),
            "start it with mqtt://, mqtts://, ws:// or wss://",
        ));
    }
    if mqtt.certificate.is_some() != mqtt.key.is_some() {
        return Err(InvalidValue::new(
            "mqtt.certificate",
            "only one of mqtt.certificate and mqtt.key is set",
            "set both settings, or neither of them",
        ));
    }
    let has_token = mqtt.token_file.is_some() || mqtt.token_key.is_some();
    if has_token && !url.starts_with("ws") {
        return Err(InvalidValue::new(
            "mqtt.url",
            "a token requires a WebSocket connection, because it is sent in an HTTP header",
            "use ws:// or wss://, or unset mqtt.token_file and mqtt.token_key",
        ));
    }
    if mqtt.client_id.is_empty() {
        return Err(InvalidValue::new(
            "mqtt.client_id",
            "it is empty, but a persistent session needs a client id",
            "set it to an id that no other MQTT client uses",
        ));
    }
    Ok(())
}

fn validate_kafka(config: &Config) -> Result<(), InvalidValue> {
    let kafka = &config.kafka;
    if kafka.brokers.is_some() && config.mqtt.url.is_none() {
        return Err(InvalidValue::new(
            "kafka.brokers",
            "the embedded broker does not use Kafka",
            "set mqtt.url to an external broker, or set kafka.brokers to \"\"",
        ));
    }
    if kafka.partitions < 1 || kafka.replication < 1 {
        return Err(InvalidValue::new(
            "kafka.partitions",
            "a topic needs at least one partition and one replica",
            "set kafka.partitions and kafka.replication to 1 or more",
        ));
    }
    Ok(())
}

fn validate_broker(broker: &Broker) -> Result<(), InvalidValue> {
    match broker.listen {
        Some(address) if !address.ip().is_loopback() => {
            return Err(InvalidValue::new(
                "broker.listen",
                format!(
                    "{address} is reachable from other machines, and without TLS any machine could \
                     impersonate any client"
                ),
                "use a loopback address, and set broker.tls.listen for other machines",
            ));
        }
        None if broker.tls.listen.is_none() => {
            return Err(InvalidValue::new(
                "broker.listen",
                "neither broker.listen nor broker.tls.listen is set, so no client could connect",
                "set at least one of the two settings",
            ));
        }
        _ => {}
    }
    let rate = broker.connect_limit.per_second;
    if !(rate.is_finite() && rate > 0.0) {
        return Err(InvalidValue::new(
            "broker.connect_limit.per_second",
            format!("{rate} is not a valid rate"),
            "set it to a number of connection attempts per second above 0",
        ));
    }
    if broker.connect_limit.burst == 0 {
        return Err(InvalidValue::new(
            "broker.connect_limit.burst",
            "0 would reject all connections",
            "set it to 1 or more",
        ));
    }
    if !(MIN_PACKET_BYTES..=MAX_PACKET_BYTES).contains(&broker.max_packet_size) {
        return Err(InvalidValue::new(
            "broker.max_packet_size",
            format!("{} is out of range", broker.max_packet_size),
            format!("set it to {MIN_PACKET_BYTES} to {MAX_PACKET_BYTES} bytes"),
        ));
    }
    Ok(())
}

fn validate_broker_tls(tls: &BrokerTls) -> Result<(), InvalidValue> {
    if tls.listen.is_none() {
        return Ok(());
    }
    let required = [
        ("broker.tls.certificate", &tls.certificate),
        ("broker.tls.key", &tls.key),
        ("broker.tls.client_ca", &tls.client_ca),
    ];
    for (setting_name, path) in required {
        if path.is_none() {
            return Err(InvalidValue::new(
                setting_name,
                "it is required when broker.tls.listen is set",
                "set it to a PEM file; `cloud-connector certs init` creates all required files",
            ));
        }
    }
    Ok(())
}

fn validate_record(record: &Record) -> Result<(), InvalidValue> {
    if !(1..=MAX_BATCH_SIZE).contains(&record.max_batch_size) {
        return Err(InvalidValue::new(
            "record.max_batch_size",
            format!("{} is out of range", record.max_batch_size),
            format!("set it to 1 to {MAX_BATCH_SIZE}"),
        ));
    }
    Ok(())
}
