//! A job whose messages are decoded. Each message is counted once, even if the recorder retries the
//! batch. Only a retry decodes online messages again, so that no attempt copies their content.

use tokio::sync::oneshot;

use super::answers::find_answer;
use super::batch::to_presence_signal;
use super::presence::PresenceSignal;
use super::writer::Job;
use super::{RecorderInput, metrics};
use domain::{ClientId, Timestamp};
use protocol::{ClientMessage, ClientTopic, HandshakeError, InboundMessage, Rejection};
use service::ByteReservation;
use store::{DeadLetter, MessageAnswer, PartitionLease};

/// The decoded messages of a job.
pub(super) struct DecodedJob {
    /// The presence signals, in the order of the inputs.
    signals: Vec<JobSignal>,
    /// The messages that cannot be processed.
    pub dead_letters: Vec<DeadLetter>,
    /// Answers to tracked messages, in the order of the inputs.
    pub answers: Vec<MessageAnswer>,
    /// Handshake errors to publish after the commit, each with the topic of the invalid handshake.
    pub handshake_errors: Vec<(ClientTopic, HandshakeError)>,
    /// Receive times of all messages.
    pub receive_times: Vec<Timestamp>,
    /// Index of the first input in the batch.
    first_index: usize,
    pub input_count: usize,
    pub size_bytes: usize,
    pub lease: Option<PartitionLease>,
    pub receipt_sender: oneshot::Sender<()>,
    /// Reserves the memory of the inputs until the job is durable.
    _reservations: Vec<ByteReservation>,
}

/// A presence signal of one attempt to write a batch.
pub(super) struct IndexedSignal {
    /// Index of the input in the batch.
    pub input_index: usize,
    pub client: ClientId,
    pub signal: PresenceSignal,
}

/// The presence signal of one input.
struct JobSignal {
    /// Index of the input in the batch.
    input_index: usize,
    client: ClientId,
    source: SignalSource,
}

/// How an attempt gets the signal.
enum SignalSource {
    /// The signal is small. Each attempt clones it.
    Clone(PresenceSignal),
    /// The signal contains an online message, which can be large. The first attempt takes the signal,
    /// and a retry decodes the input again. The input is also kept because the message becomes a
    /// dead letter if the database rejects its row. The payloads of all other messages are freed.
    Online(Box<OnlineInput>),
}

struct OnlineInput {
    input: RecorderInput,
    /// `None` after the first attempt.
    signal: Option<PresenceSignal>,
}

impl SignalSource {
    fn next_signal(&mut self, input_index: usize) -> Option<PresenceSignal> {
        match self {
            Self::Clone(signal) => Some(signal.clone()),
            Self::Online(online) => {
                let signal = online.signal.take();
                signal.or_else(|| decode_again(input_index, &online.input))
            }
        }
    }
}

/// Decodes the input of an online message for a retry.
fn decode_again(input_index: usize, input: &RecorderInput) -> Option<PresenceSignal> {
    let RecorderInput::Message { topic, message, .. } = input else {
        return None;
    };
    let decoded_message = protocol::decode(topic.channel, message).ok()?;
    to_presence_signal(input_index, input, topic, message, decoded_message)
}

impl DecodedJob {
    /// Decodes the messages of a job. Messages that cannot be processed become dead letters. The
    /// inputs have the indexes from `first_index` in the batch.
    pub fn new(job: Job, first_index: usize, now: Timestamp) -> Self {
        let input_count = job.inputs.len();
        let (inputs, reservations): (Vec<_>, Vec<_>) = job
            .inputs
            .into_iter()
            .map(|prepared| {
                let input = (prepared.input, prepared.decoded, prepared.answer);
                (input, prepared.reservation)
            })
            .unzip();
        let mut decoded_job = Self {
            signals: Vec::with_capacity(input_count),
            dead_letters: Vec::new(),
            answers: Vec::new(),
            handshake_errors: Vec::new(),
            receive_times: Vec::with_capacity(input_count),
            first_index,
            input_count,
            size_bytes: job.size_bytes,
            lease: job.lease,
            receipt_sender: job.receipt_sender,
            _reservations: reservations,
        };
        // Each input without an online message is dropped after it was decoded, so that its payload
        // is freed.
        for (input_index, (input, decoded, answer)) in (first_index..).zip(inputs) {
            decoded_job.answers.extend(answer.map(|answer| *answer));
            decoded_job.add_input(input_index, input, decoded, now);
        }
        decoded_job
    }

    /// Returns the index after the index of the last input.
    pub fn next_index(&self) -> usize {
        self.first_index + self.input_count
    }

    /// Returns the online message with this index in the batch.
    pub fn online_message(&self, input_index: usize) -> Option<&InboundMessage> {
        let signal = self
            .signals
            .iter()
            .find(|signal| signal.input_index == input_index)?;
        match &signal.source {
            SignalSource::Online(online) => online.input.inbound_message(),
            SignalSource::Clone(_) => None,
        }
    }

    /// Returns the presence signals for the next attempt to write the batch, in the order of the
    /// inputs.
    pub fn next_signals(&mut self) -> impl Iterator<Item = IndexedSignal> {
        self.signals.iter_mut().filter_map(|job_signal| {
            let input_index = job_signal.input_index;
            Some(IndexedSignal {
                input_index,
                client: job_signal.client.clone(),
                signal: job_signal.source.next_signal(input_index)?,
            })
        })
    }

    fn add_input(
        &mut self,
        input_index: usize,
        input: RecorderInput,
        decoded: Option<Result<ClientMessage, Rejection>>,
        now: Timestamp,
    ) {
        if let Some(message) = input.inbound_message() {
            self.receive_times.push(message.received_at);
        }
        match &input {
            RecorderInput::ConnectionClosed { client, reason } => {
                let signal = PresenceSignal::ConnectionClosed {
                    closed_at: now,
                    reason: *reason,
                };
                self.signals.push(JobSignal {
                    input_index,
                    client: client.clone(),
                    source: SignalSource::Clone(signal),
                });
            }
            RecorderInput::UnknownTopic { message } => {
                self.add_dead_letter(None, message, &Rejection::unknown_topic());
            }
            RecorderInput::Message { topic, message, .. } => {
                let decoded = decoded.unwrap_or_else(|| protocol::decode(topic.channel, message));
                if let Some(signal) = self.add_message(input_index, &input, topic, message, decoded)
                {
                    self.signals.push(JobSignal {
                        input_index,
                        client: topic.client.clone(),
                        source: match signal {
                            PresenceSignal::Online { .. } => {
                                SignalSource::Online(Box::new(OnlineInput {
                                    input,
                                    signal: Some(signal),
                                }))
                            }
                            _ => SignalSource::Clone(signal),
                        },
                    });
                }
            }
        }
    }

    /// Adds a decoded message. Returns its presence signal, if it has one.
    fn add_message(
        &mut self,
        input_index: usize,
        input: &RecorderInput,
        topic: &ClientTopic,
        message: &InboundMessage,
        decoded: Result<ClientMessage, Rejection>,
    ) -> Option<PresenceSignal> {
        let client = &topic.client;
        match decoded {
            Ok(ClientMessage::InvalidHandshake(error)) => {
                self.add_dead_letter(Some(client), message, &error.rejection);
                self.handshake_errors.push((topic.clone(), error));
                None
            }
            Ok(decoded_message) => {
                if let ClientMessage::Response(response) = &decoded_message {
                    self.answers.extend(find_answer(topic, message, response));
                }
                let signal =
                    to_presence_signal(input_index, input, topic, message, decoded_message);
                if signal.is_none() {
                    metrics::count_ignored_message(client, "not_presence");
                }
                signal
            }
            Err(rejection) => {
                self.add_dead_letter(Some(client), message, &rejection);
                None
            }
        }
    }

    fn add_dead_letter(
        &mut self,
        client: Option<&ClientId>,
        message: &InboundMessage,
        rejection: &Rejection,
    ) {
        metrics::count_dead_letter(&message.topic, rejection);
        let dead_letter = DeadLetter::new(client.cloned(), message, rejection);
        self.dead_letters.push(dead_letter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::PreparedInput;
    use protocol::{DialectSettings, TopicScheme};
    use service::ByteBudget;

    fn prepared_input(payload: &'static str) -> PreparedInput {
        let topics = TopicScheme::new(vec!["p".to_owned()], &DialectSettings::default());
        let message = InboundMessage {
            topic: "p/a/control/out".to_owned(),
            payload: payload.into(),
            retained: false,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: Timestamp::UNIX_EPOCH,
            ingest_stamp: None,
            truncated_from: None,
        };
        let topic = topics.parse(&message.topic).unwrap();
        let input = RecorderInput::non_kafka_message(topic, message);
        PreparedInput::new(input, &ByteBudget::new(1_000_000))
    }

    #[test]
    fn retry_gets_the_same_signals_as_the_first_attempt() {
        let online = concat!(
            r#"{"type":"connection-status","message_id":"m","version":1,"#,
            r#""sent":"2021-01-12T15:30:08+00:00","#,
            r#""content":{"canonical_facts":{"fqdn":"a.example"},"state":"online"}}"#
        );
        let offline = r#"{"type":"connection-status","content":{"state":"offline"}}"#;
        let inputs = vec![
            prepared_input(online),
            prepared_input("nonsense"),
            prepared_input(offline),
        ];
        let (receipt_sender, _receipt) = oneshot::channel();
        let job = Job::new(inputs, None, receipt_sender);
        let mut job = DecodedJob::new(job, 5, Timestamp::UNIX_EPOCH);
        let mut next_signals = || -> Vec<(usize, PresenceSignal)> {
            job.next_signals()
                .map(|indexed| (indexed.input_index, indexed.signal))
                .collect()
        };
        let first_attempt = next_signals();
        let indexes: Vec<usize> = first_attempt.iter().map(|(index, _)| *index).collect();
        assert_eq!(indexes, [5, 7]);
        assert!(matches!(first_attempt[0].1, PresenceSignal::Online { .. }));
        assert_eq!(next_signals(), first_attempt);
        assert_eq!(next_signals(), first_attempt);
        assert!(job.online_message(5).is_some());
        assert!(job.online_message(7).is_none());
    }
}
