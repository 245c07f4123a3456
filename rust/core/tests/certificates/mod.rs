//! Authorities and certificates for tests, made anew each time.
use elasticdl_core::net::tls::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

pub const WORKER: &str = "worker.elasticdl";

/// One job's authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What an identity is made of, in PEM.
pub struct Pem {
    pub authority: String,
    pub certificate: String,
    pub key: String,
}

impl Pem {
    pub fn identity(&self) -> Identity {
        Identity::new(
            self.authority.as_bytes(),
            self.certificate.as_bytes(),
            self.key.as_bytes(),
        )
        .unwrap()
    }
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self, name: &str) -> Pem {
        let mut params = CertificateParams::new(vec![name.into()]).unwrap();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        Pem {
            authority: self.0.pem(),
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    pub fn identity(&self, name: &str) -> Identity {
        self.pem(name).identity()
    }
}

/// A certificate that only vouches for itself.
#[allow(dead_code, reason = "not all tests have strangers")]
pub fn self_signed(name: &str) -> Pem {
    let params = CertificateParams::new(vec![name.into()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    Pem {
        authority: certificate.clone(),
        certificate,
        key: key.serialize_pem(),
    }
}
