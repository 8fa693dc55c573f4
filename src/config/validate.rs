//! What types cannot say: values that read well and cannot work.

use super::Config;
use super::error::Invalid;
use super::sections::{Api, Broker, BrokerTls, Http, Mqtt, Record};

/// Shorter secrets can be guessed.
const SECRET_MIN_CHARS: usize = 16;

pub(super) fn validate(config: &Config) -> Result<(), Invalid> {
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

fn not_zero(config: &Config) -> Result<(), Invalid> {
    let spans = [
        ("http.request_timeout", config.http.request_timeout),
        ("http.tls.reload_interval", config.http.tls.reload_interval),
        ("mqtt.publish_timeout", config.mqtt.publish_timeout),
        ("broker.handshake_timeout", config.broker.handshake_timeout),
        ("broker.store_wait", config.broker.store_wait),
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
        ("shutdown.grace", config.shutdown.grace),
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
        Some((key, _)) => Err(Invalid::new(
            key,
            "0 would refuse everything",
            "give it more",
        )),
        None => Ok(()),
    }
}

fn http(http: &Http) -> Result<(), Invalid> {
    let path = &http.base_path;
    let plain = path.starts_with('/')
        && !path.ends_with('/')
        && path
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.'));
    if !plain {
        return Err(Invalid::new(
            "http.base_path",
            format!("{path:?} is not a plain path"),
            "start it with / and end it without, as in \"/api/cloud-connector\"",
        ));
    }
    if http.max_body < 1024 {
        return Err(Invalid::new(
            "http.max_body",
            format!("{} bytes hold no message", http.max_body),
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
        return Err(Invalid::new(
            key,
            "it is not set, and the other of the two is",
            "name both for HTTPS, or neither for HTTP",
        ));
    }
    Ok(())
}

fn api(api: &Api) -> Result<(), Invalid> {
    let limits = &api.limits;
    for (key, rate, burst_key, burst) in [
        (
            "api.limits.per_key",
            limits.per_key,
            "api.limits.per_key_burst",
            limits.per_key_burst,
        ),
        (
            "api.limits.per_organisation",
            limits.per_organisation,
            "api.limits.per_organisation_burst",
            limits.per_organisation_burst,
        ),
    ] {
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(Invalid::new(
                key,
                format!("{rate} is not a rate"),
                "give it requests a second, or 0 for no limit",
            ));
        }
        if rate > 0.0 && burst == 0 {
            return Err(Invalid::new(
                burst_key,
                "0 refuses everybody",
                "give it 1 or more",
            ));
        }
    }
    for (name, key) in &api.keys {
        if key.secrets().is_empty() {
            return Err(Invalid::new("api.keys", "it has no secret", "give it one").named(name));
        }
        if key.scopes().is_empty() {
            return Err(Invalid::new(
                "api.keys",
                "it has no scope, so it would open nothing",
                "give it \"tenant\", \"management\" or both, or leave scopes away for \"tenant\"",
            )
            .named(name));
        }
        for secret in key.secrets() {
            if secret.expose().chars().count() < SECRET_MIN_CHARS {
                return Err(Invalid::new(
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

fn mqtt(mqtt: &Mqtt) -> Result<(), Invalid> {
    if mqtt.prefixes.is_empty() {
        return Err(Invalid::new(
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
            return Err(Invalid::new(
                "mqtt.prefixes",
                format!("{prefix:?} cannot begin a topic"),
                "use levels joined by /, without wildcards and without $, as in \"redhat/insights\"",
            ));
        }
    }
    handshake_words(mqtt)
}

fn handshake_words(mqtt: &Mqtt) -> Result<(), Invalid> {
    let mut words = vec![
        ("mqtt.handshake_in", &mqtt.handshake_in),
        ("mqtt.handshake_out", &mqtt.handshake_out),
    ];
    words.extend(
        mqtt.handshake_status
            .as_ref()
            .map(|word| ("mqtt.handshake_status", word)),
    );
    for (at, (key, word)) in words.iter().enumerate() {
        if word.is_empty() || word.contains(['/', '+', '#', '\0']) {
            return Err(Invalid::new(
                key,
                format!("{word:?} is not one level of a topic"),
                "use a word without /, + and #",
            ));
        }
        if words[..at].iter().any(|(_, other)| other == word) {
            return Err(Invalid::new(
                key,
                format!("{word:?} is another of the handshake words, too"),
                "give each a word of its own",
            ));
        }
    }
    Ok(())
}

fn outside_broker(mqtt: &Mqtt) -> Result<(), Invalid> {
    let Some(url) = &mqtt.url else {
        return Ok(());
    };
    let schemes = ["mqtt://", "mqtts://", "ws://", "wss://"];
    if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
        return Err(Invalid::new(
            "mqtt.url",
            format!("{url:?} is not the address of a broker"),
            "begin it with mqtt://, mqtts://, ws:// or wss://",
        ));
    }
    if mqtt.certificate.is_some() != mqtt.key.is_some() {
        return Err(Invalid::new(
            "mqtt.certificate",
            "a certificate needs its key, and a key its certificate",
            "set mqtt.certificate and mqtt.key, or neither",
        ));
    }
    let has_token = mqtt.token_file.is_some() || mqtt.token_key.is_some();
    if has_token && !url.starts_with("ws") {
        return Err(Invalid::new(
            "mqtt.url",
            "a token travels in the header of a websocket",
            "use ws:// or wss://, or unset mqtt.token_file and mqtt.token_key",
        ));
    }
    if mqtt.client_id.is_empty() {
        return Err(Invalid::new(
            "mqtt.client_id",
            "it is empty, so the broker could keep nothing for us",
            "give it a name of its own",
        ));
    }
    Ok(())
}

fn kafka(config: &Config) -> Result<(), Invalid> {
    let kafka = &config.kafka;
    if kafka.brokers.is_some() && config.mqtt.url.is_none() {
        return Err(Invalid::new(
            "kafka.brokers",
            "the embedded broker records straight away and uses no queue",
            "set mqtt.url to an outside broker, or leave kafka.brokers \"\"",
        ));
    }
    if kafka.partitions < 1 || kafka.replication < 1 {
        return Err(Invalid::new(
            "kafka.partitions",
            "a topic has at least one partition and one replica",
            "give kafka.partitions and kafka.replication 1 or more",
        ));
    }
    Ok(())
}

fn broker(broker: &Broker) -> Result<(), Invalid> {
    match broker.listen {
        Some(address) if !address.ip().is_loopback() => {
            return Err(Invalid::new(
                "broker.listen",
                format!(
                    "{address} can be reached from other machines, and without certificates anybody could be any client"
                ),
                "use a loopback address here, and set broker.tls.listen for other machines",
            ));
        }
        None if broker.tls.listen.is_none() => {
            return Err(Invalid::new(
                "broker.listen",
                "it is off and so is broker.tls.listen: no client could connect",
                "set one of them",
            ));
        }
        _ => {}
    }
    if !(broker.connect_rate.is_finite() && broker.connect_rate > 0.0) {
        return Err(Invalid::new(
            "broker.connect_rate",
            format!("{} is not a rate", broker.connect_rate),
            "give it attempts a second, above 0",
        ));
    }
    if broker.connect_burst == 0 {
        return Err(Invalid::new(
            "broker.connect_burst",
            "0 refuses everybody",
            "give it 1 or more",
        ));
    }
    if !(1024..=256 * 1024 * 1024).contains(&broker.max_packet_size) {
        return Err(Invalid::new(
            "broker.max_packet_size",
            format!("{} is out of range", broker.max_packet_size),
            "give it 1024 to 268435456 bytes",
        ));
    }
    Ok(())
}

fn tls(tls: &BrokerTls) -> Result<(), Invalid> {
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
            return Err(Invalid::new(
                key,
                "it is not set, and broker.tls.listen needs it",
                "name a PEM file; `cloud-connector certs init` makes a set",
            ));
        }
    }
    Ok(())
}

fn record(record: &Record) -> Result<(), Invalid> {
    if !(1..=1000).contains(&record.batch_max) {
        return Err(Invalid::new(
            "record.batch_max",
            format!("{} is out of range", record.batch_max),
            "give it 1 to 1000",
        ));
    }
    Ok(())
}
