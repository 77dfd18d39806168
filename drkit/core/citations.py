"""The papers that parts of the core, or of several plugins, come from; each cited once, oldest first."""

from __future__ import annotations

from drkit.core.spec import Citation

SPARCK_JONES = Citation(
    key="sparckjones1972idf",
    title="A statistical interpretation of term specificity and its application in retrieval",
    year=1972,
    url="https://doi.org/10.1108/eb026526",
)
RANKNET = Citation(
    key="burges2005ranknet",
    title="Learning to Rank using Gradient Descent",
    year=2005,
    url="https://doi.org/10.1145/1102351.1102363",
)
LISTNET = Citation(
    key="cao2007listnet",
    title="Learning to Rank: From Pairwise Approach to Listwise Approach",
    year=2007,
    url="https://doi.org/10.1145/1273496.1273513",
)
BM25 = Citation(
    key="robertson2009bm25",
    title="The Probabilistic Relevance Framework: BM25 and Beyond",
    year=2009,
    url="https://doi.org/10.1561/1500000019",
)
INFO_NCE = Citation(
    key="oord2018cpc",
    title="Representation Learning with Contrastive Predictive Coding",
    year=2018,
    url="https://arxiv.org/abs/1807.03748",
)
BERT = Citation(
    key="devlin2019bert",
    title="BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    year=2019,
    url="https://arxiv.org/abs/1810.04805",
)
DPR = Citation(
    key="karpukhin2020dpr",
    title="Dense Passage Retrieval for Open-Domain Question Answering",
    year=2020,
    url="https://arxiv.org/abs/2004.04906",
)
MARGIN_MSE = Citation(
    key="hofstatter2020marginmse",
    title="Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation",
    year=2020,
    url="https://arxiv.org/abs/2010.02666",
)
ANCE = Citation(
    key="xiong2021ance",
    title="Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval",
    year=2021,
    url="https://arxiv.org/abs/2007.00808",
)
ROCKETQA = Citation(
    key="qu2021rocketqa",
    title="RocketQA: An Optimized Training Approach to Dense Passage Retrieval for Open-Domain Question Answering",
    year=2021,
    url="https://arxiv.org/abs/2010.08191",
)
SIMCSE = Citation(
    key="gao2021simcse",
    title="SimCSE: Simple Contrastive Learning of Sentence Embeddings",
    year=2021,
    url="https://arxiv.org/abs/2104.08821",
)
SPLADE = Citation(
    key="formal2021splade",
    title="SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval",
    year=2021,
    url="https://arxiv.org/abs/2109.10086",
)
MATRYOSHKA = Citation(
    key="kusupati2022matryoshka",
    title="Matryoshka Representation Learning",
    year=2022,
    url="https://arxiv.org/abs/2205.13147",
)
TAS_B = Citation(
    key="hofstatter2021tasb",
    title="Efficiently Teaching an Effective Dense Retriever with Balanced Topic Aware Sampling",
    year=2021,
    url="https://arxiv.org/abs/2104.06967",
)
STAR = Citation(
    key="zhan2021adore",
    title="Optimizing Dense Retrieval Model Training with Hard Negatives",
    year=2021,
    url="https://arxiv.org/abs/2104.08051",
)
RETROMAE = Citation(
    key="xiao2022retromae",
    title="RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder",
    year=2022,
    url="https://arxiv.org/abs/2205.12035",
)
CPDAE = Citation(
    key="ma2022cpdae",
    title="A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for Dense Retrieval",
    year=2022,
    url="https://arxiv.org/abs/2208.09846",
)
QUERY_AS_CONTEXT = Citation(
    key="wu2023queryascontext",
    title="Query-as-context Pre-training for Dense Passage Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2212.09598",
)
CDMAE = Citation(
    key="li2023cdmae",
    title="Challenging Decoder helps in Masked Auto-Encoder Pre-training for Dense Passage Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2305.13197",
)
SIMLM = Citation(
    key="wang2023simlm",
    title="SimLM: Pre-training with Representation Bottleneck for Dense Passage Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2207.02578",
)
GPL = Citation(
    key="wang2022gpl",
    title="GPL: Generative Pseudo Labeling for Unsupervised Domain Adaptation of Dense Retrieval",
    year=2022,
    url="https://arxiv.org/abs/2112.07577",
)
FUSION = Citation(
    key="bruch2023fusion",
    title="An Analysis of Fusion Functions for Hybrid Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2210.11934",
)
NV_RETRIEVER = Citation(
    key="moreira2024nvretriever",
    title="NV-Retriever: Improving Text Embedding Models with Effective Hard-Negative Mining",
    year=2024,
    url="https://arxiv.org/abs/2407.15831",
)
GIST = Citation(
    key="solatorio2024gist",
    title="GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning",
    year=2024,
    url="https://arxiv.org/abs/2402.16829",
)
LLAVE = Citation(
    key="lan2025llave",
    title="LLaVE: Large Language and Vision Embedding Models with Hardness-Weighted Contrastive Learning",
    year=2025,
    url="https://arxiv.org/abs/2503.04812",
)
LLM2VEC = Citation(
    key="behnamghader2024llm2vec",
    title="LLM2Vec: Large Language Models Are Secretly Powerful Text Encoders",
    year=2024,
    url="https://arxiv.org/abs/2404.05961",
)
LLARA = Citation(
    key="li2023llara",
    title="Making Large Language Models A Better Foundation For Dense Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2312.15503",
)
LLADA = Citation(
    key="nie2025llada",
    title="Large Language Diffusion Models",
    year=2025,
    url="https://arxiv.org/abs/2502.09992",
)
RELATIONAL = Citation(
    key="park2019rkd",
    title="Relational Knowledge Distillation",
    year=2019,
    url="https://arxiv.org/abs/1904.05068",
)
MULTILINGUAL_DISTILL = Citation(
    key="reimers2020multilingual",
    title="Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation",
    year=2020,
    url="https://arxiv.org/abs/2004.09813",
)
EMBED_DISTILL = Citation(
    key="kim2023embeddistill",
    title="EmbedDistill: A Geometric Knowledge Distillation for Information Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2301.12005",
)
