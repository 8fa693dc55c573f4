//! What types cannot say: values that read well and cannot work.

use super::Config;
use super::error::InvalidValue;
use super::model::{Api, Broker, BrokerTls, Http, Mqtt, Record};

/// Shorter secrets can be guessed.
const SECRET_MIN_CHARS: usize = 16;

pub(super) fn validate(config: &Config) -> Result<(), InvalidValue> {
    http(&config.http)?;
    api(&config.api)?;
    mqtt(&config.mqtt)?;
    outside_broker(&config.mqtt)?;
    if config.mqtt.url.is_none() {
        broker(&config.broker)?;
        tls(&config.broker.tls)?;
    }
    kafka(config)?;
    record(&config.record)?;
    not_zero(config)
}

fn not_zero(config: &Config) -> Result<(), InvalidValue> {
    let spans = [
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
    let spans = spans.map(|(key, span)| (key, span.get().is_zero()));
    let counts = counts.map(|(key, count)| (key, count == 0));
    match spans
        .into_iter()
        .chain(counts)
        .find(|(_, is_zero)| *is_zero)
    {
        Some((key, _)) => Err(InvalidValue::new(
            key,
            "0 would refuse everything",
            "give it more",
        )),
        None => Ok(()),
    }
}

fn http(http: &Http) -> Result<(), InvalidValue> {
    let path = &http.base_path;
    let plain = path.starts_with('/')
        && !path.ends_with('/')
        && path
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.'));
    if !plain {
        return Err(InvalidValue::new(
            "http.base_path",
            format!("{path:?} is not a plain path"),
            "start it with / and end it without, as in \"/api/cloud-connector\"",
        ));
    }
    if http.max_body_bytes < 1024 {
        return Err(InvalidValue::new(
            "http.max_body_bytes",
            format!("{} bytes hold no message", http.max_body_bytes),
            "give it 1024 or more",
        ));
    }
    let tls = &http.tls;
    let missing = match (&tls.certificate, &tls.key) {
        (Some(_), None) => Some("http.tls.key"),
        (None, Some(_)) => Some("http.tls.certificate"),
        _ => None,
    };
    if let Some(key) = missing {
        return Err(InvalidValue::new(
            key,
            "it is not set, and the other of the two is",
            "name both for HTTPS, or neither for HTTP",
        ));
    }
    Ok(())
}

fn api(api: &Api) -> Result<(), InvalidValue> {
    let limits = &api.rate_limit;
    for (key, rate, burst_key, burst) in [
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
                key,
                format!("{rate} is not a rate"),
                "give it requests a second, or 0 for no limit",
            ));
        }
        if rate > 0.0 && burst == 0 {
            return Err(InvalidValue::new(
                burst_key,
                "0 refuses everybody",
                "give it 1 or more",
            ));
        }
    }
    for (name, key) in &api.keys {
        if key.secrets().is_empty() {
            return Err(
                InvalidValue::new("api.keys", "it has no secret", "give it one").named(name),
            );
        }
        if key.scopes().is_empty() {
            return Err(InvalidValue::new(
                "api.keys",
                "it has no scope, so it would open nothing",
                "give it \"tenant\", \"management\" or both, or leave scopes away for \"tenant\"",
            )
            .named(name));
        }
        for secret in key.secrets() {
            if secret.expose().chars().count() < SECRET_MIN_CHARS {
                return Err(InvalidValue::new(
                    "api.keys",
                    "the secret can be guessed",
                    format!("use {SECRET_MIN_CHARS} characters or more, for example from `openssl rand -hex 32`"),
                )
                .named(name));
            }
        }
    }
    Ok(())
}

fn mqtt(mqtt: &Mqtt) -> Result<(), InvalidValue> {
    if mqtt.prefixes.is_empty() {
        return Err(InvalidValue::new(
            "mqtt.prefixes",
            "it is empty, so no client would be heard",
            "name one, as in [\"redhat/insights\"]",
        ));
    }
    for prefix in &mqtt.prefixes {
        let odd = prefix.split('/').any(str::is_empty)
            || prefix.contains(['+', '#', '\0'])
            || prefix.starts_with('$');
        if odd {
            return Err(InvalidValue::new(
                "mqtt.prefixes",
                format!("{prefix:?} cannot begin a topic"),
                "use levels joined by /, without wildcards and without $, as in \"redhat/insights\"",
            ));
        }
    }
    handshake_words(mqtt)
}

fn handshake_words(mqtt: &Mqtt) -> Result<(), InvalidValue> {
    let mut words = vec![
        ("mqtt.handshake_topics.in", &mqtt.handshake_topics.inbound),
        ("mqtt.handshake_topics.out", &mqtt.handshake_topics.outbound),
    ];
    words.extend(
        mqtt.handshake_topics
            .status
            .as_ref()
            .map(|word| ("mqtt.handshake_topics.status", word)),
    );
    for (at, (key, word)) in words.iter().enumerate() {
        if word.is_empty() || word.contains(['/', '+', '#', '\0']) {
            return Err(InvalidValue::new(
                key,
                format!("{word:?} is not one level of a topic"),
                "use a word without /, + and #",
            ));
        }
        if words[..at].iter().any(|(_, other)| other == word) {
            return Err(InvalidValue::new(
                key,
                format!("{word:?} is another of the handshake words, too"),
                "give each a word of its own",
            ));
        }
    }
    Ok(())
}

fn outside_broker(mqtt: &Mqtt) -> Result<(), InvalidValue> {
    let Some(url) = &mqtt.url else {
        return Ok(());
    };
    let schemes = ["mqtt://", "mqtts://", "ws://", "wss://"];
    if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
        return Err(InvalidValue::new(
            "mqtt.url",
            format!("{url:?} is not the address of a broker"),
            "begin it with mqtt://, mqtts://, ws:// or wss://",
        ));
    }
    if mqtt.certificate.is_some() != mqtt.key.is_some() {
        return Err(InvalidValue::new(
            "mqtt.certificate",
            "a certificate needs its key, and a key its certificate",
            "set mqtt.certificate and mqtt.key, or neither",
        ));
    }
    let has_token = mqtt.token_file.is_some() || mqtt.token_key.is_some();
    if has_token && !url.starts_with("ws") {
        return Err(InvalidValue::new(
            "mqtt.url",
            "a token travels in the header of a websocket",
            "use ws:// or wss://, or unset mqtt.token_file and mqtt.token_key",
        ));
    }
    if mqtt.client_id.is_empty() {
        return Err(InvalidValue::new(
            "mqtt.client_id",
            "it is empty, so the broker could keep nothing for us",
            "give it a name of its own",
        ));
    }
    Ok(())
}

fn kafka(config: &Config) -> Result<(), InvalidValue> {
    let kafka = &config.kafka;
    if kafka.brokers.is_some() && config.mqtt.url.is_none() {
        return Err(InvalidValue::new(
            "kafka.brokers",
            "the embedded broker records straight away and uses no queue",
            "set mqtt.url to an outside broker, or leave kafka.brokers \"\"",
        ));
    }
    if kafka.partitions < 1 || kafka.replication < 1 {
        return Err(InvalidValue::new(
            "kafka.partitions",
            "a topic has at least one partition and one replica",
            "give kafka.partitions and kafka.replication 1 or more",
        ));
    }
    Ok(())
}

fn broker(broker: &Broker) -> Result<(), InvalidValue> {
    match broker.listen {
        Some(address) if !address.ip().is_loopback() => {
            return Err(InvalidValue::new(
                "broker.listen",
                format!(
                    "{address} can be reached from other machines, and without certificates anybody could be any client"
                ),
                "use a loopback address here, and set broker.tls.listen for other machines",
            ));
        }
        None if broker.tls.listen.is_none() => {
            return Err(InvalidValue::new(
                "broker.listen",
                "it is off and so is broker.tls.listen: no client could connect",
                "set one of them",
            ));
        }
        _ => {}
    }
    if !(broker.connect_limit.per_second.is_finite() && broker.connect_limit.per_second > 0.0) {
        return Err(InvalidValue::new(
            "broker.connect_limit.per_second",
            format!("{} is not a rate", broker.connect_limit.per_second),
            "give it attempts a second, above 0",
        ));
    }
    if broker.connect_limit.burst == 0 {
        return Err(InvalidValue::new(
            "broker.connect_limit.burst",
            "0 refuses everybody",
            "give it 1 or more",
        ));
    }
    if !(1024..=256 * 1024 * 1024).contains(&broker.max_packet_size) {
        return Err(InvalidValue::new(
            "broker.max_packet_size",
            format!("{} is out of range", broker.max_packet_size),
            "give it 1024 to 268435456 bytes",
        ));
    }
    Ok(())
}

fn tls(tls: &BrokerTls) -> Result<(), InvalidValue> {
    if tls.listen.is_none() {
        return Ok(());
    }
    let needed = [
        ("broker.tls.certificate", &tls.certificate),
        ("broker.tls.key", &tls.key),
        ("broker.tls.client_ca", &tls.client_ca),
    ];
    for (key, path) in needed {
        if path.is_none() {
            return Err(InvalidValue::new(
                key,
                "it is not set, and broker.tls.listen needs it",
                "name a PEM file; `cloud-connector certs init` makes a set",
            ));
        }
    }
    Ok(())
}

fn record(record: &Record) -> Result<(), InvalidValue> {
    if !(1..=1000).contains(&record.max_batch_size) {
        return Err(InvalidValue::new(
            "record.max_batch_size",
            format!("{} is out of range", record.max_batch_size),
            "give it 1 to 1000",
        ));
    }
    Ok(())
}
