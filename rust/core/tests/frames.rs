//! Frames and handshakes take any bytes without a panic, and let nobody in without the token.
use elasticdl_core::net::frame::{HEADER, Header, Kind, Malformed};
use elasticdl_core::net::handshake::{
    Caller, Denied, Heard, Hello, Purpose, Responder, Said, Token, Verdict,
};
use hmac::{Hmac, KeyInit, Mac};
use proptest::prelude::*;
use sha2::Sha256;

fn decode(frame: &[u8]) -> (Header, &[u8]) {
    (
        Header::decode(frame[..HEADER].try_into().unwrap()).unwrap(),
        &frame[HEADER..],
    )
}

fn hello(member: &str) -> Hello {
    Hello {
        purpose: Purpose::Ring,
        member: member.into(),
        view: 7,
        digest: u64::MAX,
    }
}

fn pair(ours: &[u8], theirs: &[u8]) -> (Caller, Responder) {
    let caller = Caller::new(
        Token::new(ours).unwrap(),
        hello("dialer"),
        "acceptor".into(),
    )
    .unwrap();
    let responder = Responder::new(Token::new(theirs).unwrap(), "acceptor".into()).unwrap();
    (caller, responder)
}

fn challenge(caller: &Caller, responder: &mut Responder) -> Vec<u8> {
    let nonce = caller.open();
    let (header, payload) = decode(&nonce);
    match responder.hear(&header, payload).unwrap() {
        Heard::Reply(frame) => frame,
        Heard::Hello(_) => panic!("a nonce is no hello"),
    }
}

fn introduction(caller: &mut Caller, responder: &mut Responder) -> Vec<u8> {
    let challenge = challenge(caller, responder);
    let (header, payload) = decode(&challenge);
    match caller.hear(&header, payload).unwrap() {
        Said::Reply(frame) => frame,
        Said::Verdict(_) => panic!("a challenge is no verdict"),
    }
}

#[test]
fn both_ends_learn_who_the_other_is() {
    let (mut caller, mut responder) = pair(b"token", b"token");
    let frame = introduction(&mut caller, &mut responder);
    let (header, payload) = decode(&frame);
    assert_eq!(
        responder.hear(&header, payload),
        Ok(Heard::Hello(hello("dialer")))
    );
    for verdict in [Verdict::Parked, Verdict::Ok] {
        let frame = verdict.frame();
        let (header, payload) = decode(&frame);
        assert_eq!(caller.hear(&header, payload), Ok(Said::Verdict(verdict)));
    }
}

#[test]
fn a_dialer_refuses_an_acceptor_without_the_token() {
    let (mut caller, mut responder) = pair(b"token", b"other");
    let frame = challenge(&caller, &mut responder);
    let (header, payload) = decode(&frame);
    assert_eq!(caller.hear(&header, payload), Err(Denied::Token));
}

#[test]
fn an_acceptor_refuses_a_dialer_without_the_token() {
    // Even one that got past the challenge: it answers with what another conversation taught it.
    let (mut honest, mut elsewhere) = pair(b"token", b"token");
    let replayed = introduction(&mut honest, &mut elsewhere);
    let (caller, mut responder) = pair(b"other", b"token");
    challenge(&caller, &mut responder);
    let (header, payload) = decode(&replayed);
    assert_eq!(responder.hear(&header, payload), Err(Denied::Token));
}

#[test]
fn another_member_at_the_address_is_noticed() {
    let mut caller = Caller::new(
        Token::new(b"token").unwrap(),
        hello("dialer"),
        "somebody".into(),
    )
    .unwrap();
    let mut responder = Responder::new(Token::new(b"token").unwrap(), "acceptor".into()).unwrap();
    let frame = challenge(&caller, &mut responder);
    let (header, payload) = decode(&frame);
    assert_eq!(caller.hear(&header, payload), Err(Denied::Member));
}

#[test]
fn a_proof_can_not_be_reflected() {
    // A dialer without the token opens a second conversation and hands the responder's own proof back to it.
    let (_, mut responder) = pair(b"token", b"token");
    let nonce = Header::frame(Kind::Nonce, 0, 0, &[7; 32]);
    let (header, payload) = decode(&nonce);
    let Ok(Heard::Reply(frame)) = responder.hear(&header, payload) else {
        panic!("no challenge")
    };
    let (_, challenge) = decode(&frame);
    let mut content = vec![1];
    content.extend_from_slice(&[0; 8]);
    content.extend_from_slice(&challenge[32..64]);
    let frame = Header::frame(Kind::Hello, 7, 0, &content);
    let (header, payload) = decode(&frame);
    assert_eq!(responder.hear(&header, payload), Err(Denied::Token));
}

/// Introduce a dialer for `purpose` to an responder.
fn introduce(ours: Token, theirs: Token, purpose: Purpose) -> Result<Heard, Denied> {
    let hello = Hello {
        purpose,
        ..hello("dialer")
    };
    let mut caller = Caller::new(ours, hello, "acceptor".into()).unwrap();
    let mut responder = Responder::new(theirs, "acceptor".into()).unwrap();
    let challenge = challenge(&caller, &mut responder);
    let (header, payload) = decode(&challenge);
    match caller.hear(&header, payload)? {
        Said::Reply(frame) => {
            let (header, payload) = decode(&frame);
            responder.hear(&header, payload)
        }
        Said::Verdict(_) => panic!("a challenge is no verdict"),
    }
}

#[test]
fn only_servers_prove_that_they_are_servers() {
    let server = || Token::of_server(b"the servers' key").unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(b"the servers' key").unwrap();
    mac.update(b"elasticdl key data\x01");
    let shared = mac.finalize().into_bytes();
    let worker = || Token::new(&shared).unwrap();
    let is_in = |ours, theirs, purpose| introduce(ours, theirs, purpose).is_ok();
    assert!(is_in(server(), server(), Purpose::Stream));
    assert!(is_in(worker(), server(), Purpose::Parameters));
    assert!(is_in(server(), worker(), Purpose::Heart));
    assert_eq!(
        introduce(worker(), server(), Purpose::Stream),
        Err(Denied::Token)
    );
    // Nor by taking what all share for the servers' key.
    let confused = Token::of_server(&shared).unwrap();
    assert!(introduce(confused, server(), Purpose::Stream).is_err());
}

#[test]
fn another_format_is_refused_with_both_numbers() {
    let mut bytes = Header {
        kind: Kind::Nonce,
        length: 32,
        view: 0,
        step: 0,
    }
    .encode();
    bytes[3] = 1;
    let refused = Header::decode(&bytes).unwrap_err();
    assert_eq!(refused, Malformed::Format(1));
    assert_eq!(
        refused.to_string(),
        "the other end's data plane has format 1, this end's has format 2"
    );
}

#[test]
fn an_empty_token_is_none() {
    assert!(Token::of_server(b"").is_err());
    assert!(Token::new(b"").is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_a_header_or_an_error(bytes in any::<[u8; HEADER]>()) {
        prop_assert!(Header::decode(&bytes).is_err() || Header::decode(&bytes).unwrap().encode() == bytes);
    }

    #[test]
    fn a_changed_header_is_noticed(view: u64, step: u64, at in 0..HEADER, flip in 1u8..) {
        let good = Header { kind: Kind::Scatter, length: 17, view, step };
        let mut bytes = good.encode();
        prop_assert_eq!(Header::decode(&bytes), Ok(good));
        bytes[at] ^= flip;
        prop_assert!(Header::decode(&bytes).is_err());
    }

    #[test]
    fn a_frame_is_no_longer_than_its_kind_allows(length: u32) {
        for kind in [Kind::Hello, Kind::Whole, Kind::Gather, Kind::Abort, Kind::StateData, Kind::Beat] {
            let bytes = Header { kind, length, view: 1, step: 2 }.encode();
            let expected = length as usize <= kind.limit();
            prop_assert_eq!(Header::decode(&bytes) != Err(Malformed::Length), expected);
        }
    }

    #[test]
    fn handshakes_take_any_payload(
        payload in proptest::collection::vec(any::<u8>(), 0..300), kind in prop_oneof![
            Just(Kind::Nonce), Just(Kind::Challenge), Just(Kind::Hello), Just(Kind::Verdict), Just(Kind::Beat)
        ], late: bool,
    ) {
        let (mut caller, mut responder) = pair(b"token", b"token");
        if late {
            introduction(&mut caller, &mut responder);
        }
        let frame = Header::frame(kind, 7, 0, &payload);
        let (header, payload) = decode(&frame);
        let heard = responder.hear(&header, payload);
        prop_assert!(!matches!(heard, Ok(Heard::Hello(_))), "let in without a proof");
        let said = caller.hear(&header, payload);
        prop_assert!(!matches!(said, Ok(Said::Reply(_))), "answered without a proof");
    }

    #[test]
    fn a_changed_hello_is_refused(at in HEADER.., flip in 1u8..) {
        let (mut caller, mut responder) = pair(b"token", b"token");
        let mut frame = introduction(&mut caller, &mut responder);
        let at = HEADER + at % (frame.len() - HEADER);
        frame[at] ^= flip;
        let (header, payload) = decode(&frame);
        prop_assert_eq!(responder.hear(&header, payload), Err(Denied::Token));
    }

    #[test]
    fn a_hello_of_another_view_is_refused(view: u64) {
        prop_assume!(view != 7);
        let (mut caller, mut responder) = pair(b"token", b"token");
        let frame = introduction(&mut caller, &mut responder);
        let (header, payload) = decode(&frame);
        prop_assert_eq!(responder.hear(&Header { view, ..header }, payload), Err(Denied::Token));
    }
}
