// CPU kernels for training nano. One thread per process; two processes share the batch. All tensors
// are contiguous fp32 unless noted. A mix is 24 floats per token: 4 pre, 4 post, 16 comb.
// operations.py builds this file and calls it.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { RowMajor = 101, NoTrans = 111, Trans = 112 };
void cblas_sgemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float,
                 float*, int);

static inline float fexp(float x) {  // branch free, vectorises; about 2e-7 relative
  x = x < -87.f ? -87.f : (x > 88.f ? 88.f : x);
  float n = rintf(x * 1.44269504f);
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  union {
    int32_t i;
    float f;
  } u;
  u.i = ((int32_t)n + 127) << 23;
  return p * u.f;
}
static inline float dotp(const float* a, const float* b, int n) {
  float s[8] = {0};
  for (int i = 0; i < n; i += 8)
    for (int k = 0; k < 8; k++) s[k] += a[i + k] * b[i + k];
  return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

// ---- Fake quantisation
#pragma GCC push_options
#pragma GCC optimize("no-associative-math")                // (v + m) - m must not be folded
static inline float grid(float v, int minexp, int mant) {  // round half to even on a float grid
  union {
    float f;
    uint32_t u;
  } x = {v}, m;
  int e = (int)((x.u >> 23) & 255) - 127;
  e = e < minexp ? minexp : e;
  m.u = (uint32_t)(e - mant + 23 + 127) << 23;
  m.f *= 1.5f;
  return (v + m.f) - m.f;
}
static inline float pow2ceil(float v) {  // smallest power of two >= v
  union {
    float f;
    uint32_t u;
  } x = {v};
  if (x.u & 0x7FFFFF) {
    x.u = (x.u & 0x7F800000) + 0x800000;
  }
  return x.f;
}
static inline float clampq(float v, float l) { return v > l ? l : (v < -l ? -l : v); }
// kind 0: fp8 activations / KV (blocks of 32); 1: nvfp4 (16); 2: mxfp4 (32); 3: fp4 expert weights
// (32); 4: fp8 rows (32)
void fake_rows(const float* x, float* y, long n, int kind) {
  int B = kind == 1 ? 16 : 32;
  for (long i = 0; i < n; i += B) {
    float a = 0;
    for (int k = 0; k < B; k++) {
      float v = fabsf(x[i + k]);
      a = v > a ? v : a;
    }
    float s;
    if (kind == 0) {
      a = a > 1e-4f ? a : 1e-4f;
      s = pow2ceil(a * (1.f / 448));
    } else if (kind == 1) {
      float lo = 6.f / 512;
      a = a > lo ? a : lo;
      s = grid(a / 6.f, -6, 3);
      if (s > 448) s = 448;
    } else if (kind == 4) {
      s = a > 0 ? pow2ceil(a / 448.f) : 1;
    } else {
      s = a > 0 ? pow2ceil(a / 6.f) : 1;
    }
    if (kind == 0 || kind == 4)
      for (int k = 0; k < B; k++) y[i + k] = grid(clampq(x[i + k] / s, 448), -6, 3) * s;
    else
      for (int k = 0; k < B; k++) y[i + k] = grid(clampq(x[i + k] / s, 6), 0, 1) * s;
  }
}
void fake_fp8_weight(const float* x, float* y, int o, int in) {  // 32x32 blocks
  for (int r = 0; r < o; r += 32)
    for (int c = 0; c < in; c += 32) {
      float a = 0;
      for (int i = 0; i < 32; i++)
        for (int k = 0; k < 32; k++) {
          float v = fabsf(x[(r + i) * in + c + k]);
          a = v > a ? v : a;
        }
      float s = a > 0 ? pow2ceil(a / 448.f) : 1;
      for (int i = 0; i < 32; i++)
        for (int k = 0; k < 32; k++) {
          long j = (long)(r + i) * in + c + k;
          y[j] = grid(clampq(x[j] / s, 448), -6, 3) * s;
        }
    }
}

#pragma GCC pop_options
static inline float clampf(float v, float l) { return v > l ? l : (v < -l ? -l : v); }

// ---- Hyper-connection mixes
#define LN 8  // tokens per vector lane
typedef float lane[LN];
#define FORL for (int l = 0; l < LN; l++)
// C[k] = matrices before normalisation step k (0: softmax + eps; then columns, rows, columns, ...),
// s[k] = reciprocal sums
static void sinkhorn(const float* a, int cnt, lane C[][16], lane s[][4], int iters, float eps) {
  lane m[16];
  for (int l = 0; l < LN; l++)
    for (int k = 0; k < 16; k++) m[k][l] = a[(l < cnt ? l : 0) * 24 + 8 + k];
  for (int i = 0; i < 4; i++) {
    lane* r = m + 4 * i;
    FORL {
      float x = r[0][l] > r[1][l] ? r[0][l] : r[1][l], y = r[2][l] > r[3][l] ? r[2][l] : r[3][l];
      x = x > y ? x : y;
      float e0 = fexp(r[0][l] - x), e1 = fexp(r[1][l] - x), e2 = fexp(r[2][l] - x),
            e3 = fexp(r[3][l] - x), q = 1.f / (e0 + e1 + e2 + e3);
      r[0][l] = e0 * q + eps;
      r[1][l] = e1 * q + eps;
      r[2][l] = e2 * q + eps;
      r[3][l] = e3 * q + eps;
    }
  }
  int n = 2 * iters - 1;
  for (int k = 0; k < n; k++) {
    memcpy(C[k], m, sizeof m);
    for (int i = 0; i < 4; i++) {
      int b = k % 2 ? 4 * i : i, st = k % 2 ? 1 : 4;
      FORL {
        float q = 1.f / (m[b][l] + m[b + st][l] + m[b + 2 * st][l] + m[b + 3 * st][l] + eps);
        s[k][i][l] = q;
        m[b][l] *= q;
        m[b + st][l] *= q;
        m[b + 2 * st][l] *= q;
        m[b + 3 * st][l] *= q;
      }
    }
  }
  memcpy(C[n], m, sizeof m);
}
void mhc_fwd(const float* a, float* out, int T, int iters, float eps) {
  static lane C[64][16], s[64][4];
  for (int t = 0; t < T; t += LN, a += 24 * LN, out += 24 * LN) {
    int cnt = T - t < LN ? T - t : LN;
    sinkhorn(a, cnt, C, s, iters, eps);
    for (int l = 0; l < cnt; l++) {
      for (int i = 0; i < 4; i++) out[l * 24 + i] = 1.f / (1.f + fexp(-a[l * 24 + i])) + eps;
      for (int i = 4; i < 8; i++) out[l * 24 + i] = 2.f / (1.f + fexp(-a[l * 24 + i]));
      for (int k = 0; k < 16; k++) out[l * 24 + 8 + k] = C[2 * iters - 1][k][l];
    }
  }
}
void mhc_bwd(const float* a, const float* dout, float* da, int T, int iters, float eps) {
  static lane C[64][16], s[64][4];
  lane g[16];
  for (int t = 0; t < T; t += LN, a += 24 * LN, dout += 24 * LN, da += 24 * LN) {
    int cnt = T - t < LN ? T - t : LN;
    sinkhorn(a, cnt, C, s, iters, eps);
    for (int l = 0; l < LN; l++)
      for (int k = 0; k < 16; k++) g[k][l] = dout[(l < cnt ? l : 0) * 24 + 8 + k];
    for (int k = 2 * iters - 2; k >= 0; k--) {  // y = m * s, s = 1/(sum m + eps)
      lane* y = C[k + 1];
      for (int i = 0; i < 4; i++) {
        int b = k % 2 ? 4 * i : i, st = k % 2 ? 1 : 4;
        FORL {
          float d = g[b][l] * y[b][l] + g[b + st][l] * y[b + st][l] +
                    g[b + 2 * st][l] * y[b + 2 * st][l] + g[b + 3 * st][l] * y[b + 3 * st][l],
                q = s[k][i][l];
          g[b][l] = (g[b][l] - d) * q;
          g[b + st][l] = (g[b + st][l] - d) * q;
          g[b + 2 * st][l] = (g[b + 2 * st][l] - d) * q;
          g[b + 3 * st][l] = (g[b + 3 * st][l] - d) * q;
        }
      }
    }
    for (int l = 0; l < cnt; l++) {
      const float *x = a + 24 * l, *o = dout + 24 * l;
      float* q = da + 24 * l;
      for (int i = 0; i < 8; i++) {
        float p = 1.f / (1.f + fexp(-x[i]));
        q[i] = (i < 4 ? 1 : 2) * o[i] * p * (1 - p);
      }
      for (int i = 0; i < 4; i++) {  // softmax
        float d = 0, p[4];
        for (int j = 0; j < 4; j++) {
          p[j] = C[0][4 * i + j][l] - eps;
          d += g[4 * i + j][l] * p[j];
        }
        for (int j = 0; j < 4; j++) q[8 + 4 * i + j] = (g[4 * i + j][l] - d) * p[j];
      }
    }
  }
}
void row_rms(const float* x, float* r, int T, int n, float eps) {
  for (int t = 0; t < T; t++)
    r[t] = 1.f / sqrtf(dotp(x + (long)t * n, x + (long)t * n, n) / n + eps);
}
// x = sum_i pre_i h_i
void collapse_fwd(const float* mix, const float* h, float* x, int T, int D) {
  for (int t = 0; t < T; t++, mix += 24, h += 4 * D, x += D)
    for (int d = 0; d < D; d++)
      x[d] = mix[0] * h[d] + mix[1] * h[D + d] + mix[2] * h[2 * D + d] + mix[3] * h[3 * D + d];
}
void collapse_bwd(const float* mix, const float* h, const float* dx, float* dmix, float* dh, int T,
                  int D) {
  for (int t = 0; t < T; t++, mix += 24, h += 4 * D, dx += D, dmix += 24, dh += 4 * D) {
    memset(dmix, 0, 96);
    for (int i = 0; i < 4; i++) {
      dmix[i] = dotp(dx, h + i * D, D);
      for (int d = 0; d < D; d++) dh[i * D + d] = mix[i] * dx[d];
    }
  }
}
// h_new[j] = post_j y + sum_i C_ij R_i
void combine_fwd(const float* mix, const float* R, const float* y, float* h, int T, int D) {
  for (int t = 0; t < T; t++, mix += 24, R += 4 * D, y += D, h += 4 * D)
    for (int j = 0; j < 4; j++) {
      float p = mix[4 + j], c0 = mix[8 + j], c1 = mix[12 + j], c2 = mix[16 + j], c3 = mix[20 + j];
      for (int d = 0; d < D; d++)
        h[j * D + d] = p * y[d] + c0 * R[d] + c1 * R[D + d] + c2 * R[2 * D + d] + c3 * R[3 * D + d];
    }
}
void combine_bwd(const float* mix, const float* R, const float* y, const float* dh, float* dmix,
                 float* dR, float* dy, int T, int D) {
  for (int t = 0; t < T;
       t++, mix += 24, R += 4 * D, y += D, dh += 4 * D, dmix += 24, dR += 4 * D, dy += D) {
    for (int i = 0; i < 4; i++) dmix[i] = 0;
    for (int j = 0; j < 4; j++) {
      dmix[4 + j] = dotp(dh + j * D, y, D);
      for (int i = 0; i < 4; i++) dmix[8 + 4 * i + j] = dotp(dh + j * D, R + i * D, D);
    }
    for (int d = 0; d < D; d++)
      dy[d] = mix[4] * dh[d] + mix[5] * dh[D + d] + mix[6] * dh[2 * D + d] + mix[7] * dh[3 * D + d];
    for (int i = 0; i < 4; i++) {
      const float* c = mix + 8 + 4 * i;
      for (int d = 0; d < D; d++)
        dR[i * D + d] =
            c[0] * dh[d] + c[1] * dh[D + d] + c[2] * dh[2 * D + d] + c[3] * dh[3 * D + d];
    }
  }
}
void rmsnorm_fwd(const float* x, const float* w, float* y, float* r, int T, int n, float eps) {
  for (int t = 0; t < T; t++, x += n, y += n) {
    r[t] = 1.f / sqrtf(dotp(x, x, n) / n + eps);
    for (int d = 0; d < n; d++) y[d] = x[d] * r[t] * w[d];
  }
}
void rmsnorm_bwd(const float* x, const float* w, const float* r, const float* dy, float* dx,
                 float* dw, int T, int n) {
  float* g = malloc(4 * n);
  memset(dw, 0, 4 * n);
  for (int t = 0; t < T; t++, x += n, dy += n, dx += n) {
    float rt = r[t];
    for (int d = 0; d < n; d++) {
      dw[d] += dy[d] * x[d] * rt;
      g[d] = dy[d] * w[d];
    }
    float c = dotp(g, x, n) * rt * rt * rt / n;
    for (int d = 0; d < n; d++) dx[d] = g[d] * rt - x[d] * c;
  }
  free(g);
}
// rotate the last rd values of each d-vector; rows are [T][H][d], cs [S][rd/2] indexed by t % S
void rope(const float* x, float* y, const float* co, const float* si, int T, int H, int d, int rd,
          int S, float sign) {
  for (int t = 0; t < T; t++) {
    const float *c = co + (t % S) * (rd / 2), *s = si + (t % S) * (rd / 2);
    for (int h = 0; h < H; h++, x += d, y += d) {
      if (x != y) memcpy(y, x, 4 * (d - rd));
      for (int k = 0; k < rd / 2; k++) {
        float a = x[d - rd + 2 * k], b = x[d - rd + 2 * k + 1], sn = sign * s[k];
        y[d - rd + 2 * k] = a * c[k] - b * sn;
        y[d - rd + 2 * k + 1] = a * sn + b * c[k];
      }
    }
  }
}

// ---- Attention (one shared K=V vector per key)
// q [B][S][H][d], kv [B][S][d] window keys, ck [B][n][d] compressed rows (n may be 0), sel
// [B][S][n] bytes or NULL. Query chunks of QC; the window part covers keys [c*QC-W+1 .. c*QC+QC-1],
// the compressed part rows visible to the chunk.
#define QC 64
static void scores(const float* q, const float* kv, const float* ck, const uint8_t* sel, float* P,
                   int c, int H, int d, int W, int n, int ratio, int k0, int kw, int kc, int qc) {
  int K = kw + kc, M = qc * H;
  float sc = 1.f / sqrtf((float)d);
  cblas_sgemm(RowMajor, NoTrans, Trans, M, kw, d, sc, q, d, kv + (long)k0 * d, d, 0, P, K);
  if (kc) cblas_sgemm(RowMajor, NoTrans, Trans, M, kc, d, sc, q, d, ck, d, 0, P + kw, K);
  for (int i = 0; i < qc; i++) {
    int p = c * QC + i, lo = p - W + 1 - k0, hi = p - k0, vis = ratio ? (p + 1) / ratio : 0;
    for (int h = 0; h < H; h++) {
      float* s = P + (long)(i * H + h) * K;
      for (int k = 0; k < kw; k++) s[k] = (k < lo || k > hi) ? -1e30f : s[k];
      float* s2 = s + kw;
      if (sel) {
        const uint8_t* m = sel + (long)i * n;
        for (int k = 0; k < kc; k++) s2[k] = m[k] ? s2[k] : -1e30f;
      } else
        for (int k = vis; k < kc; k++) s2[k] = -1e30f;
    }
  }
}
void attn_fwd(const float* q, const float* kv, const float* ck, const uint8_t* sel,
              const float* sink, float* o, float* lse, float* psum, int B, int S, int H, int d,
              int W, int n, int ratio) {
  float* P = malloc(sizeof(float) * QC * H * (QC + W + n + 8));
  for (int b = 0; b < B; b++)
    for (int c = 0; c * QC < S; c++) {
      int qc = S - c * QC < QC ? S - c * QC : QC;
      int k0 = c * QC - W + 1;
      if (k0 < 0) k0 = 0;
      int kw = c * QC + qc - k0, kc = ratio ? (c * QC + qc) / ratio : 0;
      if (kc > n) kc = n;
      int K = kw + kc, M = qc * H;
      long row = ((long)b * S + c * QC);
      const float *kb = kv + (long)b * S * d, *cb = ck + (long)b * n * d;
      const uint8_t* sb = sel ? sel + row * n : NULL;
      scores(q + row * H * d, kb, cb, sb, P, c, H, d, W, n, ratio, k0, kw, kc, qc);
      for (int m = 0; m < M; m++) {
        float *s = P + (long)m * K, sk = sink[m % H], mx = sk;
        for (int k = 0; k < K; k++) mx = s[k] > mx ? s[k] : mx;
        float den = 0;
        for (int k = 0; k < K; k++) {
          float e = s[k] < -1e29f ? 0 : fexp(s[k] - mx);
          s[k] = e;
          den += e;
        }
        den += fexp(sk - mx);
        float inv = 1.f / den;
        for (int k = 0; k < K; k++) s[k] *= inv;
        lse[row * H + m] = mx + logf(den);
      }
      cblas_sgemm(RowMajor, NoTrans, NoTrans, M, d, kw, 1, P, K, kb + (long)k0 * d, d, 0,
                  o + row * H * d, d);
      if (kc)
        cblas_sgemm(RowMajor, NoTrans, NoTrans, M, d, kc, 1, P + kw, K, cb, d, 1, o + row * H * d,
                    d);
      if (psum)
        for (int i = 0; i < qc; i++) {
          float* out = psum + (row + i) * n;
          for (int h = 0; h < H; h++) {
            const float* s = P + (long)(i * H + h) * K + kw;
            for (int k = 0; k < kc; k++) out[k] += s[k];
          }
        }
    }
  free(P);
}
void attn_bwd(const float* q, const float* kv, const float* ck, const uint8_t* sel,
              const float* sink, const float* o, const float* lse, const float* dO, float* dq,
              float* dkv, float* dck, float* dsink, int B, int S, int H, int d, int W, int n,
              int ratio) {
  float *P = malloc(sizeof(float) * QC * H * (QC + W + n + 8)),
        *G = malloc(sizeof(float) * QC * H * (QC + W + n + 8));
  float sc = 1.f / sqrtf((float)d);
  for (int b = 0; b < B; b++)
    for (int c = 0; c * QC < S; c++) {
      int qc = S - c * QC < QC ? S - c * QC : QC;
      int k0 = c * QC - W + 1;
      if (k0 < 0) k0 = 0;
      int kw = c * QC + qc - k0, kc = ratio ? (c * QC + qc) / ratio : 0;
      if (kc > n) kc = n;
      int K = kw + kc, M = qc * H;
      long row = ((long)b * S + c * QC);
      const float *kb = kv + (long)b * S * d, *cb = ck + (long)b * n * d, *qb = q + row * H * d,
                  *db = dO + row * H * d;
      float *dkb = dkv + (long)b * S * d + (long)k0 * d, *dcb = dck + (long)b * n * d;
      scores(qb, kb, cb, sel ? sel + row * n : NULL, P, c, H, d, W, n, ratio, k0, kw, kc, qc);
      cblas_sgemm(RowMajor, NoTrans, Trans, M, kw, d, 1, db, d, kb + (long)k0 * d, d, 0, G, K);
      if (kc) cblas_sgemm(RowMajor, NoTrans, Trans, M, kc, d, 1, db, d, cb, d, 0, G + kw, K);
      for (int m = 0; m < M; m++) {
        float *s = P + (long)m * K, *g = G + (long)m * K, l = lse[row * H + m];
        float D = dotp(db + (long)m * d, o + (row * H + m) * d, d);
        for (int k = 0; k < K; k++) {
          float e = s[k] < -1e29f ? 0 : fexp(s[k] - l);
          s[k] = e;
          g[k] = e * (g[k] - D);
        }
        dsink[m % H] -= fexp(sink[m % H] - l) * D;
      }
      cblas_sgemm(RowMajor, Trans, NoTrans, kw, d, M, 1, P, K, db, d, 1, dkb, d);
      cblas_sgemm(RowMajor, Trans, NoTrans, kw, d, M, sc, G, K, qb, d, 1, dkb, d);
      cblas_sgemm(RowMajor, NoTrans, NoTrans, M, d, kw, sc, G, K, kb + (long)k0 * d, d, 0,
                  dq + row * H * d, d);
      if (kc) {
        cblas_sgemm(RowMajor, Trans, NoTrans, kc, d, M, 1, P + kw, K, db, d, 1, dcb, d);
        cblas_sgemm(RowMajor, Trans, NoTrans, kc, d, M, sc, G + kw, K, qb, d, 1, dcb, d);
        cblas_sgemm(RowMajor, NoTrans, NoTrans, M, d, kc, sc, G + kw, K, cb, d, 1, dq + row * H * d,
                    d);
      }
    }
  free(P);
  free(G);
}

// ---- Indexer
// score[s][j] = sum_h w[s][h] relu(q[s][h].k[j]);  invisible -> -inf (-3e38)
void index_scores(const float* q, const float* k, const float* w, float* score, int B, int S,
                  int nh, int d, int n, int ratio) {
  float* Z = malloc(sizeof(float) * QC * nh * (n + 8));
  for (int b = 0; b < B; b++)
    for (int c = 0; c * QC < S; c++) {
      int qc = S - c * QC < QC ? S - c * QC : QC, kc = (c * QC + qc) / ratio;
      if (kc > n) kc = n;
      long row = (long)b * S + c * QC;
      if (kc)
        cblas_sgemm(RowMajor, NoTrans, Trans, qc * nh, kc, d, 1, q + row * nh * d, d,
                    k + (long)b * n * d, d, 0, Z, kc);
      for (int i = 0; i < qc; i++) {
        int vis = (c * QC + i + 1) / ratio;
        if (vis > n) vis = n;
        float* s = score + (row + i) * n;
        for (int j = 0; j < vis; j++) s[j] = 0;
        for (int h = 0; h < nh; h++) {
          const float* z = Z + (long)(i * nh + h) * kc;
          float wh = w[(row + i) * nh + h];
          for (int j = 0; j < vis; j++) s[j] += wh * (z[j] > 0 ? z[j] : 0);
        }
        for (int j = vis; j < n; j++) s[j] = -3e38f;
      }
    }
  free(Z);
}
// KL(target || softmax(score)) over allowed rows; gradients are produced at once. target [B][S][n]
// is unnormalised (zero outside).
double index_kl(const float* q, const float* k, const float* w, const float* target,
                const uint8_t* sel, float* dq, float* dk, float* dw, int B, int S, int nh, int d,
                int n, int ratio) {
  float *Z = malloc(sizeof(float) * QC * nh * (n + 8)), *s = malloc(sizeof(float) * (n + 8));
  double loss = 0;
  float norm = 1.f / ((float)B * S);
  memset(dk, 0, sizeof(float) * (long)B * n * d);
  for (int b = 0; b < B; b++)
    for (int c = 0; c * QC < S; c++) {
      int qc = S - c * QC < QC ? S - c * QC : QC, kc = (c * QC + qc) / ratio;
      if (kc > n) kc = n;
      long row = (long)b * S + c * QC;
      if (!kc) {
        memset(dq + row * nh * d, 0, sizeof(float) * qc * nh * d);
        memset(dw + row * nh, 0, sizeof(float) * qc * nh);
        continue;
      }
      const float* kb = k + (long)b * n * d;
      cblas_sgemm(RowMajor, NoTrans, Trans, qc * nh, kc, d, 1, q + row * nh * d, d, kb, d, 0, Z,
                  kc);
      for (int i = 0; i < qc; i++) {
        int vis = (c * QC + i + 1) / ratio;
        if (vis > n) vis = n;
        const uint8_t* m = sel ? sel + (row + i) * n : NULL;
        const float* tg = target + (row + i) * n;
        float *dwp = dw + (row + i) * nh, tot = 0;
        for (int h = 0; h < nh; h++) dwp[h] = 0;
        for (int j = 0; j < vis; j++) {
          s[j] = 0;
          tot += tg[j];
        }
        if (tot < 1e-6f || vis < 2) {
          for (int h = 0; h < nh; h++) memset(Z + (long)(i * nh + h) * kc, 0, sizeof(float) * kc);
          continue;
        }
        for (int h = 0; h < nh; h++) {
          const float* z = Z + (long)(i * nh + h) * kc;
          float wh = w[(row + i) * nh + h];
          for (int j = 0; j < vis; j++) s[j] += wh * (z[j] > 0 ? z[j] : 0);
        }
        float mx = -3e38f, den = 0;
        for (int j = 0; j < vis; j++) {
          if (m && !m[j]) s[j] = -1e30f;
          mx = s[j] > mx ? s[j] : mx;
        }
        float raw = 0, it = 1.f / tot;
        for (int j = 0; j < vis; j++) {
          float tv = tg[j] * it;
          if (tv > 1e-9f) raw += tv * (logf(tv) - (s[j] - mx));
          s[j] = s[j] < -1e29f ? 0 : fexp(s[j] - mx);
          den += s[j];
        }
        loss += raw + logf(den);
        for (int j = 0; j < vis; j++) s[j] = (s[j] / den - tg[j] * it) * norm;
        for (int h = 0; h < nh; h++) {
          float *z = Z + (long)(i * nh + h) * kc, wh = w[(row + i) * nh + h], a = 0;
          for (int j = 0; j < vis; j++) {
            float on = z[j] > 0 ? s[j] : 0;
            a += on * z[j];
            z[j] = on * wh;
          }
          for (int j = vis; j < kc; j++) z[j] = 0;
          dwp[h] = a;
        }
      }
      cblas_sgemm(RowMajor, NoTrans, NoTrans, qc * nh, d, kc, 1, Z, kc, kb, d, 0, dq + row * nh * d,
                  d);
      cblas_sgemm(RowMajor, Trans, NoTrans, kc, d, qc * nh, 1, Z, kc, q + row * nh * d, d, 1,
                  dk + (long)b * n * d, d);
    }
  free(Z);
  free(s);
  return loss / ((double)B * S);
}

// ---- Mixture of experts
static inline float bfr(float v) {
  union {
    float f;
    uint32_t u;
  } x = {v};
  x.u = (x.u + 0x7FFF + ((x.u >> 16) & 1)) & 0xFFFF0000u;
  return x.f;
}
// order: token ids sorted by expert, off[E+1]; wt[i] routing weight of entry i. W13 [E][2I][D], W2
// [E][D][I]. saves hg [n][2I] (pre-activation) and z [n][I]; quant: fake-quantise x (outside) and z
// (here).
void moe_fwd(const float* x, const int64_t* order, const int64_t* off, const float* wt,
             const float* W13, const float* W2, float* hg, float* z, float* y, int E, int D, int I,
             float lim, int quant) {
  int mxn = 0;
  for (int e = 0; e < E; e++)
    if (off[e + 1] - off[e] > mxn) mxn = off[e + 1] - off[e];
  float *xb = malloc(sizeof(float) * (mxn + 1) * D), *yb = malloc(sizeof(float) * (mxn + 1) * D);
  for (int e = 0; e < E; e++) {
    int m = off[e + 1] - off[e];
    if (!m) continue;
    const int64_t* id = order + off[e];
    float *hb = hg + off[e] * 2 * I, *zb = z + off[e] * I;
    for (int i = 0; i < m; i++) memcpy(xb + (long)i * D, x + id[i] * D, 4 * D);
    cblas_sgemm(RowMajor, NoTrans, Trans, m, 2 * I, D, 1, xb, D, W13 + (long)e * 2 * I * D, D, 0,
                hb, 2 * I);
    if (quant == 2)
      for (long i = 0; i < (long)m * 2 * I; i++) hb[i] = bfr(hb[i]);
    for (int i = 0; i < m; i++) {
      float w = wt[off[e] + i];
      const float *g = hb + (long)i * 2 * I, *u = g + I;
      float* zz = zb + (long)i * I;
      for (int k = 0; k < I; k++) {
        float gg = g[k] < lim ? g[k] : lim, uu = clampf(u[k], lim);
        zz[k] = w * gg / (1.f + fexp(-gg)) * uu;
      }
    }
    if (quant == 2)
      for (long i = 0; i < (long)m * I; i++) zb[i] = bfr(zb[i]);
    if (quant) fake_rows(zb, zb, (long)m * I, 0);
    cblas_sgemm(RowMajor, NoTrans, Trans, m, D, I, 1, zb, I, W2 + (long)e * D * I, I, 0, yb, D);
    if (quant == 2)
      for (long i = 0; i < (long)m * D; i++) yb[i] = bfr(yb[i]);
    for (int i = 0; i < m; i++) {
      float* yy = y + id[i] * D;
      const float* v = yb + (long)i * D;
      for (int k = 0; k < D; k++) yy[k] += v[k];
    }
  }
  free(xb);
  free(yb);
}
void moe_bwd(const float* x, const int64_t* order, const int64_t* off, const float* wt,
             const float* W13, const float* W2, const float* hg, const float* z, const float* dy,
             float* dx, float* dwt, float* dW13, float* dW2, int E, int D, int I, float lim) {
  int mxn = 0;
  for (int e = 0; e < E; e++)
    if (off[e + 1] - off[e] > mxn) mxn = off[e + 1] - off[e];
  float *xb = malloc(sizeof(float) * (mxn + 1) * D), *gb = malloc(sizeof(float) * (mxn + 1) * D),
        *dz = malloc(sizeof(float) * (mxn + 1) * I),
        *dh = malloc(sizeof(float) * (mxn + 1) * 2 * I);
  for (int e = 0; e < E; e++) {
    int m = off[e + 1] - off[e];
    if (!m) {
      memset(dW13 + (long)e * 2 * I * D, 0, 8L * I * D);
      memset(dW2 + (long)e * I * D, 0, 4L * I * D);
      continue;
    }
    const int64_t* id = order + off[e];
    for (int i = 0; i < m; i++) {
      memcpy(xb + (long)i * D, x + id[i] * D, 4 * D);
      memcpy(gb + (long)i * D, dy + id[i] * D, 4 * D);
    }
    cblas_sgemm(RowMajor, NoTrans, NoTrans, m, I, D, 1, gb, D, W2 + (long)e * D * I, I, 0, dz, I);
    cblas_sgemm(RowMajor, Trans, NoTrans, D, I, m, 1, gb, D, z + off[e] * I, I, 0,
                dW2 + (long)e * D * I, I);
    for (int i = 0; i < m; i++) {
      float w = wt[off[e] + i], dw = 0;
      const float *g = hg + (off[e] + i) * 2 * I, *u = g + I;
      float *a = dh + (long)i * 2 * I, *b = a + I, *zz = dz + (long)i * I;
      for (int k = 0; k < I; k++) {
        float gg = g[k] < lim ? g[k] : lim, uu = clampf(u[k], lim), s = 1.f / (1.f + fexp(-gg)),
              si = gg * s;
        dw += zz[k] * si * uu;
        b[k] = (u[k] > lim || u[k] < -lim) ? 0 : zz[k] * w * si;
        a[k] = g[k] > lim ? 0 : zz[k] * w * uu * (s + si * (1 - s));
      }
      dwt[off[e] + i] = dw;
    }
    cblas_sgemm(RowMajor, Trans, NoTrans, 2 * I, D, m, 1, dh, 2 * I, xb, D, 0,
                dW13 + (long)e * 2 * I * D, D);
    cblas_sgemm(RowMajor, NoTrans, NoTrans, m, D, 2 * I, 1, dh, 2 * I, W13 + (long)e * 2 * I * D, D,
                0, gb, D);
    for (int i = 0; i < m; i++) {
      float* v = dx + id[i] * D;
      const float* g = gb + (long)i * D;
      for (int k = 0; k < D; k++) v[k] += g[k];
    }
  }
  free(xb);
  free(gb);
  free(dz);
  free(dh);
}

// ---- Head + cross entropy, gradients at once
double head_cross_entropy(const float* x, const float* W, const int64_t* y, const float* wt,
                          float* dx, float* dW, float* nll, int T, int D, int V) {
  int CH = 128;
  float* L = malloc(sizeof(float) * CH * V);
  double loss = 0;
  memset(dW, 0, sizeof(float) * (long)V * D);
  for (int t0 = 0; t0 < T; t0 += CH) {
    int m = T - t0 < CH ? T - t0 : CH;
    cblas_sgemm(RowMajor, NoTrans, Trans, m, V, D, 1, x + (long)t0 * D, D, W, D, 0, L, V);
    for (int i = 0; i < m; i++) {
      float *l = L + (long)i * V, mx = l[0], den = 0;
      int64_t t = y[t0 + i];
      float c = wt[t0 + i], lt = l[t];
      for (int k = 0; k < V; k++) mx = l[k] > mx ? l[k] : mx;
      for (int k = 0; k < V; k++) {
        l[k] = fexp(l[k] - mx);
        den += l[k];
      }
      nll[t0 + i] = logf(den) + mx - lt;
      loss += c * nll[t0 + i];
      float s = c / den;
      for (int k = 0; k < V; k++) l[k] *= s;
      l[t] -= c;
    }
    cblas_sgemm(RowMajor, NoTrans, NoTrans, m, D, V, 1, L, V, W, D, 0, dx + (long)t0 * D, D);
    cblas_sgemm(RowMajor, Trans, NoTrans, V, D, m, 1, L, V, x + (long)t0 * D, D, 1, dW, D);
  }
  free(L);
  return loss;
}

// ---- Draft distillation
// per row: target softmax(TL), draft softmax(L); loss = w (a CE(argmax target) + b KL + c TV),
// gradient into dL; tv and hit are outputs
double draft_head(const float* L, const float* TL, const float* w, float* dL, float* tv, float* hit,
                  int R, int V, float a, float b, float c) {
  float *tp = malloc(4L * V), *q = malloc(4L * V);
  double loss = 0;
  for (int r = 0; r < R; r++, L += V, TL += V, dL += V) {
    float m1 = TL[0], m2 = L[0], d1 = 0, d2 = 0;
    int k1 = 0, k2 = 0;
    for (int k = 0; k < V; k++) {
      m1 = TL[k] > m1 ? TL[k] : m1;
      m2 = L[k] > m2 ? L[k] : m2;
    }
    for (int k = 0; k < V; k++) {
      tp[k] = fexp(TL[k] - m1);
      d1 += tp[k];
      q[k] = fexp(L[k] - m2);
      d2 += q[k];
    }
    for (int k = 0; k < V; k++) {
      if (TL[k] == m1) {
        k1 = k;
        break;
      }
    }
    for (int k = 0; k < V; k++) {
      if (L[k] == m2) {
        k2 = k;
        break;
      }
    }
    float i1 = 1.f / d1, i2 = 1.f / d2, l1 = logf(d1) + m1, l2 = logf(d2) + m2, kl = 0, t = 0,
          dot = 0;
    for (int k = 0; k < V; k++) {
      tp[k] *= i1;
      q[k] *= i2;
      kl += tp[k] * ((TL[k] - l1) - (L[k] - l2));
      float e = q[k] - tp[k], s = e > 0 ? 1.f : -1.f;
      t += e * s;
      dot += q[k] * s;
    }
    tv[r] = 0.5f * t;
    hit[r] = k1 == k2;
    loss += w[r] * (a * (l2 - L[k1]) + b * kl + c * tv[r]);
    for (int k = 0; k < V; k++) {
      float e = q[k] - tp[k], s = e > 0 ? 1.f : -1.f;
      dL[k] = w[r] * (a * q[k] + b * e + 0.5f * c * q[k] * (s - dot));
    }
    dL[k1] -= w[r] * a;
  }
  free(tp);
  free(q);
  return loss;
}

// ---- Optimisers
void adamw(float* p, const float* g1, const float* g2, float* m, float* v, long n, float lr,
           float b1, float b2, float eps, float c1, float c2) {
  for (long i = 0; i < n; i++) {
    float g = g1[i] + g2[i];
    m[i] += (1 - b1) * (g - m[i]);
    v[i] += (1 - b2) * (g * g - v[i]);
    p[i] -= lr * m[i] * c1 / (sqrtf(v[i] * c2) + eps);
  }
}
// one matrix: momentum, five Newton-Schulz steps, update. rows r x cols c (any order)
void muon(float* p, const float* g1, const float* g2, float* mom, int cnt, int r, int c, float lr,
          float beta, float wd) {
  int a = r < c ? r : c, b = r < c ? c : r;
  float *X = malloc(4L * a * b), *A = malloc(4L * a * a), *Bm = malloc(4L * a * a),
        *Y = malloc(4L * a * b);
  for (int q = 0; q < cnt;
       q++, p += (long)r * c, g1 += (long)r * c, g2 += (long)r * c, mom += (long)r * c) {
    double nn = 0;
    for (int i = 0; i < r; i++)
      for (int j = 0; j < c; j++) {
        long k = (long)i * c + j;
        float g = g1[k] + g2[k];
        mom[k] = beta * mom[k] + (1 - beta) * g;
        float u = (1 - beta) * g + beta * mom[k];
        X[r <= c ? (long)i * b + j : (long)j * b + i] = u;
        nn += (double)u * u;
      }
    if (nn < 1e-30) continue;
    float inv = 1.f / (sqrtf((float)nn) + 1e-12f);
    for (long k = 0; k < (long)a * b; k++) X[k] *= inv;
    for (int it = 0; it < 5; it++) {
      cblas_sgemm(RowMajor, NoTrans, Trans, a, a, b, 1, X, b, X, b, 0, A, a);
      memcpy(Bm, A, 4L * a * a);
      cblas_sgemm(RowMajor, NoTrans, NoTrans, a, a, a, 2.0315f, A, a, A, a, -4.7750f, Bm, a);
      for (int i = 0; i < a; i++) Bm[(long)i * a + i] += 3.4445f;
      cblas_sgemm(RowMajor, NoTrans, NoTrans, a, b, a, 1, Bm, a, X, b, 0, Y, b);
      float* t = X;
      X = Y;
      Y = t;
    }
    float s = lr * 0.2f * sqrtf((float)b);
    for (int i = 0; i < r; i++)
      for (int j = 0; j < c; j++) {
        long k = (long)i * c + j;
        p[k] -= s * X[r <= c ? (long)i * b + j : (long)j * b + i] + lr * wd * p[k];
      }
  }
  free(X);
  free(A);
  free(Bm);
  free(Y);
}
